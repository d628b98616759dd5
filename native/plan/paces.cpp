#include "plan/paces.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace ringcore::plan {
namespace {

// Rates are noisy, and an uneven network takes longer to simulate: rank by rank, some hundred milliseconds among 64 of
// them. Among more the usual port stands for all.
constexpr double kUneven = 2;
// Who is named should not be one whose processors are busy.
constexpr double kNamed = 3;
constexpr int kMostUneven = 64;

// What the table has of each rank.
enum Column : std::size_t { kRate, kLatency, kSure, kMean, kColumns };

template <class Table>
auto column(Table table, Column which) {
  const std::size_t ranks = table.size() / kColumns;
  return table.subspan(which * ranks, ranks);
}

bool is_slow(double rate, double usual, double times) { return rate > 0 && rate * times < usual; }

// What the ranks of each host have together.
std::vector<double> of_hosts(const Topology& topology, std::span<const double> by_rank) {
  const int last = *std::max_element(topology.host_of.begin(), topology.host_of.end());
  std::vector<double> by_host(static_cast<std::size_t>(last) + 1, 0);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) by_host[topology.host_of[rank]] += by_rank[rank];
  return by_host;
}

}  // namespace

double median(std::vector<double> numbers) {
  std::erase(numbers, 0.0);
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

std::size_t paces_size(int ranks) { return kColumns * static_cast<std::size_t>(ranks); }

void write_pace(std::span<double> table, Rank self, const PortPace& pace) {
  const auto own = static_cast<std::size_t>(self);
  column(table, kRate)[own] = pace.bytes_per_s;
  column(table, kLatency)[own] = pace.latency_s;
  column(table, kSure)[own] = pace.sure ? 1 : 0;
  column(table, kMean)[own] = pace.mean_bytes_per_s;
}

bool knows_rates(std::span<const double> table) {
  const auto rates = column(table, kRate);
  return std::any_of(rates.begin(), rates.end(), [](double rate) { return rate > 0; });
}

Links corrected(const Topology& topology, std::span<const double> table) {
  Links links = topology.links;
  const auto latencies = column(table, kLatency);
  const double latency = median({latencies.begin(), latencies.end()});
  if (latency > 0) links.between_hosts.latency_s = latency;
  if (!knows_rates(table)) return links;
  std::vector<double> by_host = of_hosts(topology, column(table, kRate));
  const double usual = median(by_host);
  links.ports.clear();
  links.between_hosts.seconds_per_byte = 1 / usual;
  const auto slow = [usual](double rate) { return is_slow(rate, usual, kUneven); };
  if (topology.ranks() > kMostUneven || std::none_of(by_host.begin(), by_host.end(), slow)) return links;
  for (const double rate : by_host) links.ports.push_back(1 / (rate > 0 ? rate : usual));
  return links;
}

std::vector<SlowHost> slow_hosts(const Topology& topology, std::span<const double> table) {
  std::vector<SlowHost> slow;
  const std::vector<double> rates = of_hosts(topology, column(table, kRate));
  const std::vector<double> means = of_hosts(topology, column(table, kMean));
  const std::vector<double> sure = of_hosts(topology, column(table, kSure));  // how many ranks of the host are
  const double usual_rate = median(rates);
  const double usual_mean = median(means);
  for (std::size_t host = 0; host < rates.size(); ++host) {
    if (sure[host] > 0 && is_slow(rates[host], usual_rate, kNamed) && is_slow(means[host], usual_mean, kNamed))
      slow.push_back({static_cast<int>(host), rates[host], usual_rate});
  }
  return slow;
}

std::string describe(const SlowHost& slow, const Topology& topology) {
  const auto rate = [](double bytes_per_s) { return std::to_string(std::lround(bytes_per_s / 1e6)) + " MB/s"; };
  std::string ranks;
  int many = 0;
  for (std::size_t rank = 0; rank < topology.host_of.size(); ++rank) {
    if (topology.host_of[rank] == slow.host) ranks += (many++ == 0 ? "" : ", ") + std::to_string(rank);
  }
  return "the host of rank" + std::string(many == 1 ? " " : "s ") + ranks + " sends " + rate(slow.bytes_per_s) +
         " to other hosts, where " + rate(slow.usual) +
         " are usual in this job: all others wait for it. Remedy: look at its cable, its card and what else uses them "
         "('ringcore topology' measures all links), or leave the host out.";
}

}  // namespace ringcore::plan
