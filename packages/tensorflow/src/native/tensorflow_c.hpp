// The part of TensorFlow's C API that the shim calls, looked up in the TensorFlow that the process has loaded.
//
// Neither its headers nor its library are needed to build; tests/test_shim.py compares this with the headers of the
// installed version.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;
}

namespace ringcore::tensorflow {

using DataType = int;  // an enum of C
using Code = int;      // as well

struct StringView {
  const char* data;
  std::size_t len;
};

using Create = void* (*)(TF_OpKernelConstruction*);
using Compute = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using Delete = void (*)(void*);
using InferShape = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Deallocate = void (*)(void*, std::size_t, void*);

// X(result, name, parameters)
#define RINGCORE_TENSORFLOW_FUNCTIONS(X)                                                                         \
  X(TF_Status*, NewStatus, ())                                                                                   \
  X(void, DeleteStatus, (TF_Status*))                                                                            \
  X(void, SetStatus, (TF_Status*, Code, const char*))                                                            \
  X(Code, GetCode, (const TF_Status*))                                                                           \
  X(const char*, Message, (const TF_Status*))                                                                    \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                              \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                    \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                   \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                  \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                     \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, InferShape))                   \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                           \
  X(TF_ShapeHandle*, NewShapeHandle, ())                                                                         \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                  \
  X(std::int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                   \
  X(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))          \
  X(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))         \
  X(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                         \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder, (const char*, const char*, Create, Compute, Delete))               \
  X(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                   \
  X(void, OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*)) \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                  \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                            \
  X(StringView, GetOpKernelName, (TF_OpKernelContext*))                                                          \
  X(std::int64_t, GetIterId, (TF_OpKernelContext*))                                                              \
  X(int, NumInputs, (TF_OpKernelContext*))                                                                       \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                         \
  X(TF_Tensor*, ForwardInputOrAllocateOutput,                                                                    \
    (TF_OpKernelContext*, const int*, int, int, const std::int64_t*, int, int*, TF_Status*))                     \
  X(TF_Tensor*, AllocateOutput,                                                                                  \
    (TF_OpKernelContext*, int, DataType, const std::int64_t*, int, std::size_t, TF_Status*))                     \
  X(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                   \
  X(TF_Tensor*, NewTensor, (DataType, const std::int64_t*, int, void*, std::size_t, Deallocate, void*))          \
  X(void, DeleteTensor, (TF_Tensor*))                                                                            \
  X(DataType, TensorType, (const TF_Tensor*))                                                                    \
  X(int, NumDims, (const TF_Tensor*))                                                                            \
  X(std::int64_t, Dim, (const TF_Tensor*, int))                                                                  \
  X(std::size_t, TensorByteSize, (const TF_Tensor*))                                                             \
  X(void*, TensorData, (const TF_Tensor*))

struct Functions {
#define RINGCORE_DECLARE(Result, name, Parameters) Result(*name) Parameters = nullptr;
  RINGCORE_TENSORFLOW_FUNCTIONS(RINGCORE_DECLARE)
#undef RINGCORE_DECLARE
};

}  // namespace ringcore::tensorflow
