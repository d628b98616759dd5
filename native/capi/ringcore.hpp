// ringcore.h in C++: what the compiled halves of adapters share. Nothing here is linked with: it calls through the table
// of functions that Python hands over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/ringcore.h"

namespace ringcore::capi {

// Whether the results lie where the request says, in the shapes of the inputs (of a reduce, on its root). The engine
// allocates all others.
inline bool writes_to_outputs(int collective) {
  return collective == RINGCORE_ALLREDUCE || collective == RINGCORE_BROADCAST || collective == RINGCORE_REDUCE;
}

// A request, with the memory that it points to.
struct Request {
  std::string name;
  std::vector<ringcore_array> inputs;  // their shapes belong to the caller, and stay until the request is submitted
  std::vector<void*> outputs;  // see `writes_to_outputs`
  std::vector<std::uint64_t> output_rows;  // of the others' outputs, each in host memory; none: the engine allocates
  std::vector<std::uint64_t> splits;
  ringcore_request options{};  // all else

  // Starts the operation. `kFinish` is called once with the operation that has ended, maybe before this returns, and may
  // delete `owner` and, with it, this request.
  template <auto kFinish, class Owner>
  void submit(const ringcore_functions& engine, Owner* owner) {
    ringcore_request request = options;
    request.name = name.data();
    request.name_bytes = name.size();
    request.inputs = inputs.data();
    request.outputs = outputs.empty() ? nullptr : outputs.data();
    request.output_rows = output_rows.empty() ? nullptr : output_rows.data();
    request.count = inputs.size();
    request.splits = splits.data();
    request.split_count = splits.size();
    engine.submit(
        &request,
        [](void* context, ringcore_operation* operation) { (static_cast<Owner*>(context)->*kFinish)(operation); },
        owner);
  }
};

// How an operation has ended. The message of an error lives as long as the operation.
struct Outcome {
  std::int32_t error = RINGCORE_OK;
  const char* message = nullptr;
  bool ok() const { return error == RINGCORE_OK; }
};

inline Outcome outcome_of(const ringcore_functions& engine, const ringcore_operation* operation) {
  Outcome outcome;
  outcome.error = engine.error(operation, &outcome.message);
  return outcome;
}

// Memory of the engine.
using Memory = std::unique_ptr<ringcore_memory, decltype(ringcore_functions::free_memory)>;

// What the engine has allocated for the results of one input.
struct Result {
  Memory memory;
  void* data = nullptr;
  std::size_t bytes = 0;
};

inline Result take_result(const ringcore_functions& engine, ringcore_operation* operation, std::size_t index) {
  void* data = nullptr;
  std::size_t bytes = 0;
  Memory memory(engine.take_result(operation, index, &data, &bytes), engine.free_memory);
  return {std::move(memory), data, bytes};
}

}  // namespace ringcore::capi
