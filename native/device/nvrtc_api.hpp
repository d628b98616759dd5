// The part of NVRTC, CUDA's compiler as a library, that ringcore uses.
#pragma once

#include <cstddef>

struct _nvrtcProgram;

namespace ringcore::device {

struct Nvrtc {
  int (*nvrtcVersion)(int* major, int* minor);
  int (*nvrtcCreateProgram)(_nvrtcProgram** program, const char* source, const char* name, int header_count,
                            const char* const* headers, const char* const* header_names);
  int (*nvrtcCompileProgram)(_nvrtcProgram* program, int option_count, const char* const* options);
  int (*nvrtcDestroyProgram)(_nvrtcProgram** program);
  int (*nvrtcGetCUBINSize)(_nvrtcProgram* program, std::size_t* bytes);
  int (*nvrtcGetCUBIN)(_nvrtcProgram* program, char* cubin);
  int (*nvrtcGetProgramLogSize)(_nvrtcProgram* program, std::size_t* bytes);
  int (*nvrtcGetProgramLog)(_nvrtcProgram* program, char* log);
};

// Calls `visit(name, pointer)` for each function of the table.
template <class Table, class Visit>
void each_nvrtc_function(Table& table, Visit&& visit) {
  visit("nvrtcVersion", table.nvrtcVersion);
  visit("nvrtcCreateProgram", table.nvrtcCreateProgram);
  visit("nvrtcCompileProgram", table.nvrtcCompileProgram);
  visit("nvrtcDestroyProgram", table.nvrtcDestroyProgram);
  visit("nvrtcGetCUBINSize", table.nvrtcGetCUBINSize);
  visit("nvrtcGetCUBIN", table.nvrtcGetCUBIN);
  visit("nvrtcGetProgramLogSize", table.nvrtcGetProgramLogSize);
  visit("nvrtcGetProgramLog", table.nvrtcGetProgramLog);
}

}  // namespace ringcore::device
