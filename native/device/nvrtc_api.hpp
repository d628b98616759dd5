// The part of NVRTC, CUDA's compiler as a library, that ringcore uses.
#pragma once

#include <cstddef>

namespace ringcore::device {

namespace nvrtc {

using Program = void*;

}  // namespace nvrtc

struct Nvrtc {
  int (*nvrtcVersion)(int* major, int* minor);
  int (*nvrtcGetNumSupportedArchs)(int* count);
  int (*nvrtcGetSupportedArchs)(int* capabilities);
  int (*nvrtcCreateProgram)(nvrtc::Program* program, const char* source, const char* name, int header_count,
                            const char* const* headers, const char* const* header_names);
  int (*nvrtcCompileProgram)(nvrtc::Program program, int option_count, const char* const* options);
  int (*nvrtcDestroyProgram)(nvrtc::Program* program);
  int (*nvrtcGetCUBINSize)(nvrtc::Program program, std::size_t* bytes);
  int (*nvrtcGetCUBIN)(nvrtc::Program program, char* cubin);
  int (*nvrtcGetPTXSize)(nvrtc::Program program, std::size_t* bytes);
  int (*nvrtcGetPTX)(nvrtc::Program program, char* text);
  int (*nvrtcGetProgramLogSize)(nvrtc::Program program, std::size_t* bytes);
  int (*nvrtcGetProgramLog)(nvrtc::Program program, char* log);
};

// Calls `visit(name, pointer)` for each function of the table.
template <class Table, class Visit>
void each_nvrtc_function(Table& table, Visit&& visit) {
  visit("nvrtcVersion", table.nvrtcVersion);
  visit("nvrtcGetNumSupportedArchs", table.nvrtcGetNumSupportedArchs);
  visit("nvrtcGetSupportedArchs", table.nvrtcGetSupportedArchs);
  visit("nvrtcCreateProgram", table.nvrtcCreateProgram);
  visit("nvrtcCompileProgram", table.nvrtcCompileProgram);
  visit("nvrtcDestroyProgram", table.nvrtcDestroyProgram);
  visit("nvrtcGetCUBINSize", table.nvrtcGetCUBINSize);
  visit("nvrtcGetCUBIN", table.nvrtcGetCUBIN);
  visit("nvrtcGetPTXSize", table.nvrtcGetPTXSize);
  visit("nvrtcGetPTX", table.nvrtcGetPTX);
  visit("nvrtcGetProgramLogSize", table.nvrtcGetProgramLogSize);
  visit("nvrtcGetProgramLog", table.nvrtcGetProgramLog);
}

}  // namespace ringcore::device
