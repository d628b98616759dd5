// What the tests of the engine as its users see it share: operations, and jobs over several transports.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"

namespace ringcore::testing {

using engine::Operation;

inline std::shared_ptr<Operation> make(Collective collective, const std::string& name, std::vector<std::uint64_t> shape,
                                       DType dtype, const void* input, void* output, ReduceOp op = ReduceOp::kSum) {
  auto operation = std::make_shared<Operation>();
  operation->descriptor.name = name;
  operation->descriptor.collective = collective;
  operation->descriptor.dtype = dtype;
  operation->descriptor.op = op;
  operation->descriptor.shape = engine::Shape::of(shape);
  operation->input = static_cast<const std::byte*>(input);
  operation->output = static_cast<std::byte*>(output);
  return operation;
}

inline std::shared_ptr<Operation> allreduce(const std::string& name, std::vector<float>& data,
                                            ReduceOp op = ReduceOp::kSum) {
  return make(Collective::kAllreduce, name, {data.size()}, DType::kFloat32, data.data(), data.data(), op);
}

inline std::shared_ptr<Operation> group_of(const std::string& name, std::vector<std::vector<float>>& tensors) {
  std::vector<std::shared_ptr<Operation>> parts;
  for (auto& tensor : tensors) parts.push_back(allreduce("", tensor));
  return engine::make_group(name, std::move(parts));
}

inline void finish(Runtime& runtime, Operation& operation) {
  REQUIRE(runtime.wait(operation, 30 * kSecond, {}));
  if (operation.error) throw *operation.error;
}

inline void run(Runtime& runtime, const std::shared_ptr<Operation>& operation) {
  runtime.run(operation, {});
  REQUIRE(operation->done());
  if (operation->error) throw *operation->error;
}

// A different power of two for each rank: a lost or doubled contribution shows whose it was.
inline float mark(Rank rank) { return static_cast<float>(1 << rank); }

inline std::vector<ClusterOptions> all_clusters() {
  return {{.ranks = 2, .host_of = {}},
          {.ranks = 4, .host_of = {}},
          {.ranks = 3, .host_of = {0, 1, 2}},
          {.ranks = 4, .host_of = {0, 0, 1, 1}},
          {.ranks = 5, .host_of = {0, 0, 0, 1, 1}}};
}

template <class Body>
void on_all_clusters(Body body) {
  for (const auto& options : all_clusters()) {
    CAPTURE(options.ranks);
    CAPTURE(options.host_of.size());
    Cluster cluster(options);
    body(cluster);
  }
}

}  // namespace ringcore::testing
