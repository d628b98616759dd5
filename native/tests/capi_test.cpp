// The C border, on one rank; between ranks the adapters' tests go through it.
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "capi/capi.hpp"
#include "carriers/standard.hpp"

namespace {

using namespace ringcore;

std::shared_ptr<Runtime> single_rank() {
  RuntimeConfig config;
  config.engine.links.resize(1);
  config.engine.host_of = {0};
  config.engine.make_carriers = carriers::standard();
  return std::make_shared<Runtime>(std::move(config));
}

struct Outcome {
  int calls = 0;
  std::int32_t code = -1;
  std::string message;
};

void note(void* context, ringcore_operation* operation) {
  auto& outcome = *static_cast<Outcome*>(context);
  const char* message = nullptr;
  outcome.code = capi::table()->error(operation, &message);
  outcome.message = message;
  ++outcome.calls;
}

ringcore_request request_of(std::string_view name, int collective, const ringcore_array* inputs, std::size_t count) {
  ringcore_request request{};
  request.name = name.data();
  request.name_bytes = name.size();
  request.collective = collective;
  request.prescale = request.postscale = 1.0;
  request.inputs = inputs;
  request.count = count;
  return request;
}

TEST_CASE("capi: without an engine the operation ends with what to do") {
  capi::set_runtime({});
  Outcome outcome;
  const ringcore_request request = request_of("early", RINGCORE_BARRIER, nullptr, 0);
  capi::table()->submit(&request, note, &outcome);
  CHECK(outcome.calls == 1);
  CHECK(outcome.code == RINGCORE_NOT_INITIALIZED);
  CHECK(outcome.message.find("init()") != std::string::npos);
  CHECK(capi::table()->rank(0) == -1);
}

TEST_CASE("capi: a gather goes into an output of so many rows, and into no other") {
  const auto runtime = single_rank();
  capi::set_runtime(runtime);
  std::array<float, 3> input{1, 2, 3};
  std::array<float, 4> place{-1, -1, -1, -1};
  const std::uint64_t rows = input.size();
  const ringcore_array array{input.data(), &rows, 1, RINGCORE_FLOAT32};
  void* const output = place.data();
  for (const std::uint64_t given : {rows + 1, rows}) {
    ringcore_request request = request_of("gather", RINGCORE_ALLGATHER, &array, 1);
    request.blocking = 1;
    request.outputs = &output;
    request.output_rows = &given;
    Outcome outcome;
    capi::table()->submit(&request, note, &outcome);
    CHECK(outcome.code == (given == rows ? RINGCORE_OK : RINGCORE_MISMATCH));
    CHECK(place[0] == (given == rows ? 1 : -1));
  }
  CHECK(place == std::array<float, 4>{1, 2, 3, -1});
}

TEST_CASE("capi: a group, in place and not, blocking and not") {
  const auto runtime = single_rank();
  capi::set_runtime(runtime);
  CHECK(capi::table()->rank(0) == 0);
  CHECK(capi::table()->size(0) == 1);
  CHECK(capi::table()->size(5) == -1);
  for (const int blocking : {0, 1}) {
    std::vector<float> first{1, 2, 3};
    std::vector<double> second{4, 5};
    std::vector<double> result{0, 0};
    const std::uint64_t shapes[]{3, 2};
    const ringcore_array inputs[]{{first.data(), &shapes[0], 1, RINGCORE_FLOAT32},
                                  {second.data(), &shapes[1], 1, RINGCORE_FLOAT64}};
    void* const outputs[]{first.data(), result.data()};
    ringcore_request request = request_of("group", RINGCORE_ALLREDUCE, inputs, 2);
    request.outputs = outputs;
    request.postscale = 2.0;
    request.blocking = blocking;
    Outcome outcome;
    capi::table()->submit(&request, note, &outcome);
    CHECK(outcome.calls == 1);
    CHECK(outcome.code == RINGCORE_OK);
    CHECK(first == std::vector<float>{2, 4, 6});
    CHECK(result == std::vector<double>{8, 10});
  }
}

TEST_CASE("capi: results are taken over, aligned, and outlive the operation") {
  const auto runtime = single_rank();
  capi::set_runtime(runtime);
  struct Taken {
    ringcore_memory* memory = nullptr;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::vector<std::uint64_t> rows;
  } taken;
  std::vector<std::int32_t> values(7, 9);
  const std::uint64_t shape[]{7};
  const ringcore_array input{values.data(), shape, 1, RINGCORE_INT32};
  const ringcore_request request = request_of("gather", RINGCORE_ALLGATHER, &input, 1);
  const auto take = [](void* context, ringcore_operation* operation) {
    auto& into = *static_cast<Taken*>(context);
    into.memory = capi::table()->take_result(operation, 0, &into.data, &into.bytes);
    std::size_t count = 0;
    const std::uint64_t* rows = capi::table()->rows(operation, 0, &count);
    into.rows.assign(rows, rows + count);
  };
  capi::table()->submit(&request, take, &taken);
  REQUIRE(taken.bytes == 28);
  CHECK(reinterpret_cast<std::uintptr_t>(taken.data) % 64 == 0);
  CHECK(std::memcmp(taken.data, values.data(), 28) == 0);
  CHECK(taken.rows == std::vector<std::uint64_t>{7});
  capi::table()->free_memory(taken.memory);
}

TEST_CASE("capi: memory that the other ranks see, where there is some") {
  const auto functions = capi::table();
  void* data = nullptr;
  capi::set_runtime({});
  CHECK(functions->allocate(1 << 20, &data) == nullptr);
  const transport::Segment segment = transport::Segment::create(0, 2, 4 << 20);
  transport::Arena arena(segment);
  auto pool = std::make_shared<transport::Pool>(arena);
  capi::set_runtime({}, {}, pool);
  CHECK(functions->allocate(100, &data) == nullptr);      // small tensors are packed with others
  CHECK(functions->allocate(1 << 30, &data) == nullptr);  // no room: any memory will do
  ringcore_memory* memory = functions->allocate(1 << 20, &data);
  REQUIRE(memory != nullptr);
  CHECK(arena.offset_of(data, 1 << 20));
  const std::vector<char> text(1 << 20, 'x');
  functions->copy(data, text.data(), text.size());
  CHECK(std::memcmp(data, text.data(), text.size()) == 0);
  // A tensor of a framework may outlive the engine.
  capi::set_runtime({});
  const std::weak_ptr<transport::Pool> watched = pool;
  pool.reset();
  CHECK(!watched.expired());
  functions->free_memory(memory);
  CHECK(watched.expired());
}

TEST_CASE("capi: whoever is told of an end may submit the next one") {
  const auto runtime = single_rank();
  capi::set_runtime(runtime);
  struct Chain {
    int left = 100;
    int ended = 0;
    static void next(void* context, ringcore_operation*) {
      auto& chain = *static_cast<Chain*>(context);
      ++chain.ended;
      if (chain.left-- > 0) chain.submit();
    }
    void submit() {
      const ringcore_request request = request_of("link", RINGCORE_BARRIER, nullptr, 0);
      capi::table()->submit(&request, next, this);
    }
  } chain;
  chain.submit();
  CHECK(chain.ended == 101);
}

TEST_CASE("capi: what is wrong with a request is told to `done`") {
  const auto runtime = single_rank();
  capi::set_runtime(runtime);
  std::vector<std::int32_t> values(3);
  const std::uint64_t shape[]{3};
  ringcore_array input{values.data(), shape, 1, RINGCORE_INT32};
  void* const outputs[]{values.data()};
  const auto code_of = [&](ringcore_request request) {
    request.outputs = outputs;
    Outcome outcome;
    capi::table()->submit(&request, note, &outcome);
    CHECK(outcome.calls == 1);
    return outcome.code;
  };
  CHECK(code_of(request_of("", RINGCORE_ALLREDUCE, &input, 1)) == RINGCORE_INVALID_ARGUMENT);
  ringcore_request average = request_of("average", RINGCORE_ALLREDUCE, &input, 1);
  average.op = static_cast<std::int32_t>(ReduceOp::kAverage);
  CHECK(code_of(average) == RINGCORE_INVALID_ARGUMENT);
  input.dtype = 77;
  CHECK(code_of(request_of("dtype", RINGCORE_ALLREDUCE, &input, 1)) == RINGCORE_INVALID_ARGUMENT);
  runtime->leave("");
  input.dtype = RINGCORE_INT32;
  CHECK(code_of(request_of("late", RINGCORE_ALLREDUCE, &input, 1)) == RINGCORE_SHUTDOWN);
}

}  // namespace
