// Where an array lies and what it holds, for anything that speaks the buffer protocol or DLPack.
#include "buffer.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <unordered_map>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/types.hpp"
#include "register.hpp"

namespace nb = nanobind;

#if defined(Py_LIMITED_API) && Py_LIMITED_API + 0 < 0x030b0000
// Of the stable ABI since Python 3.11, and the same before.
struct Py_buffer {
  void* buf;
  PyObject* obj;
  Py_ssize_t len, itemsize;
  int readonly, ndim;
  char* format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void* internal;
};
extern "C" int PyObject_GetBuffer(PyObject* exporter, Py_buffer* view, int flags);
extern "C" void PyBuffer_Release(Py_buffer* view);
constexpr int PyBUF_WRITABLE = 0x1;
constexpr int PyBUF_FORMAT = 0x4;
constexpr int PyBUF_C_CONTIGUOUS = 0x38;
#endif

namespace ringcore::python {
namespace {

// What a type offers C code that wants to look at its objects without a Python call: the C exchange of DLPack 1.3.
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* tensor);
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};
constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kExchangeCapsule = "dlpack_exchange_api";

// Pinned memory of CUDA lies in the host as well.
constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kPinned = 3;
constexpr std::int32_t kCuda = 2;

// How objects of a type are looked at.
struct Way {
  const ExchangeApi* exchange = nullptr;  // null when the type offers none
  bool is_numpy = false;      // numpy.ndarray itself
  bool keeps_memory = false;  // an array of numpy, which keeps its memory as long as somebody refers to it
};

bool is_numpy_array(nb::handle type) {
  const auto is = [&](const char* attribute, const char* value) {
    return nb::getattr(type, attribute, nb::none()).equal(nb::str(value));
  };
  return is("__module__", "numpy") && is("__name__", "ndarray");
}

const Way& way_of(nb::handle array) {
  static std::unordered_map<PyTypeObject*, Way> known;
  static PyTypeObject* last_type = nullptr;
  static const Way* last = nullptr;
  PyTypeObject* type = Py_TYPE(array.ptr());
  if (type == last_type) return *last;
  auto found = known.find(type);
  if (found == known.end()) {
    const nb::handle object(reinterpret_cast<PyObject*>(type));
    const nb::object capsule = nb::getattr(object, kExchangeAttribute, nb::none());
    Way way;
    if (PyCapsule_IsValid(capsule.ptr(), kExchangeCapsule) != 0) {
      way.exchange = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kExchangeCapsule));
      while (way.exchange != nullptr && way.exchange->major != 1) way.exchange = way.exchange->previous;
    }
    way.is_numpy = is_numpy_array(object);
    for (const nb::handle base : object.attr("__mro__")) way.keeps_memory |= is_numpy_array(base);
    Py_INCREF(type);  // its address stays its own
    found = known.emplace(type, way).first;
  }
  last_type = type;
  last = &found->second;
  return *last;
}

// Our code for a DLPack dtype, -1 when there is none.
int code_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return -1;
  const auto pick = [&dtype](std::initializer_list<std::pair<int, DType>> known) {
    for (const auto& [bits, found] : known) {
      if (bits == dtype.bits) return static_cast<int>(found);
    }
    return -1;
  };
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float: return pick({{16, DType::kFloat16}, {32, DType::kFloat32}, {64, DType::kFloat64}});
    case Code::Bfloat: return pick({{16, DType::kBFloat16}});
    case Code::Bool: return pick({{8, DType::kBool}});
    case Code::Int: return pick({{8, DType::kInt8}, {16, DType::kInt16}, {32, DType::kInt32}, {64, DType::kInt64}});
    case Code::UInt: return pick({{8, DType::kUInt8}, {16, DType::kUInt16}});
    default: return -1;  // complex and 8-bit floats
  }
}

struct Layout {
  const void* data;
  int dims;
  const std::int64_t* shape;
  const std::int64_t* strides;  // null: contiguous
  int dtype;  // our code, -1: none
  std::shared_ptr<void> held;  // see Buffer
  int device = engine::kHost;
  std::uintptr_t stream = 0;

  bool contiguous() const {
    if (strides == nullptr) return true;
    std::int64_t size = 1;
    for (int i = 0; i < dims; ++i) size *= shape[i];
    std::int64_t stride = 1;
    for (int i = dims; size > 0 && i-- > 0;) {
      if (shape[i] != 1 && strides[i] != stride) return false;
      stride *= shape[i];
    }
    return true;
  }
};

bool has_memory(const Layout& layout) {
  if (layout.data != nullptr) return true;
  return std::any_of(layout.shape, layout.shape + layout.dims, [](std::int64_t extent) { return extent == 0; });
}

std::optional<std::uintptr_t> stream_by(const ExchangeApi& api, int device) {
  void* stream = nullptr;
  if (api.current_stream == nullptr || api.current_stream(kCuda, device, &stream) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  return reinterpret_cast<std::uintptr_t>(stream);
}

// By the C exchange of its type. Objects that only stand for a tensor have no memory.
std::optional<Layout> layout_of(const ExchangeApi& api, nb::handle array) {
  nb::dlpack::dltensor tensor{};
  if (api.tensor_from_object(array.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const bool cuda = tensor.device.device_type == kCuda;
  if (tensor.device.device_type != kCpu && tensor.device.device_type != kPinned && !cuda) return std::nullopt;
  Layout layout{tensor.data, tensor.ndim, tensor.shape, tensor.strides, code_of(tensor.dtype), nullptr};
  if (!has_memory(layout)) return std::nullopt;
  if (layout.data != nullptr) layout.data = static_cast<const std::byte*>(layout.data) + tensor.byte_offset;
  if (cuda) {
    layout.device = tensor.device.device_id;
    layout.stream = stream_by(api, layout.device).value_or(0);
  }
  return layout;
}

// Our code for a format of the struct module, -1 when there is none.
int code_of(const char* format, Py_ssize_t item_bytes) {
  if (*format == '@' || *format == '=') ++format;
  if (*format == '\0' || format[1] != '\0') return -1;
  using Code = nb::dlpack::dtype_code;
  const auto numeric = [item_bytes](Code code) {
    return code_of(nb::dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(item_bytes * 8), 1});
  };
  if (*format == '?') return numeric(Code::Bool);
  if (std::strchr("efd", *format) != nullptr) return numeric(Code::Float);
  if (std::strchr("bhilq", *format) != nullptr) return numeric(Code::Int);
  if (std::strchr("BHILQ", *format) != nullptr) return numeric(Code::UInt);
  return -1;
}

// By the buffer protocol, for a moment.
std::optional<engine::Array> numpy_view(nb::handle array, bool writable) {
  Py_buffer view{};
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) !=
      0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const int dtype = code_of(view.format == nullptr ? "B" : view.format, view.itemsize);
  std::optional<engine::Array> found;
  if (dtype >= 0) {
    const auto* extents = reinterpret_cast<const std::uint64_t*>(view.shape);  // none is negative
    found = engine::Array{static_cast<std::byte*>(view.buf),
                          engine::Shape::of(std::span(extents, static_cast<std::size_t>(view.ndim))),
                          static_cast<DType>(dtype)};
  }
  PyBuffer_Release(&view);
  return found;
}

// By the buffer protocol or DLPack.
template <class Array>
std::optional<Layout> exported_layout(nb::handle object) {
  auto array = std::make_shared<Array>();
  if (!nb::try_cast<Array>(object, *array, false)) return std::nullopt;
  return Layout{array->data(),       static_cast<int>(array->ndim()), array->shape_ptr(),
                array->stride_ptr(), code_of(array->dtype()),         array};
}

Buffer describe(nb::handle array, bool writable) {
  if (nb::inst_check(array) && nb::isinstance<Buffer>(array)) return nb::cast<const Buffer&>(array);
  std::optional<Layout> layout;
  const Way& way = way_of(array);
  if (way.exchange != nullptr) {
    layout = layout_of(*way.exchange, array);
  } else {
    layout = writable ? exported_layout<nb::ndarray<nb::device::cpu>>(array)
                      : exported_layout<nb::ndarray<nb::ro, nb::device::cpu>>(array);
  }
  if (!layout) throw nb::type_error("not an array in memory of the host");
  return {reinterpret_cast<std::uintptr_t>(layout->data),
          {layout->shape, layout->shape + layout->dims},
          layout->dtype,
          layout->contiguous(),
          nb::borrow(array),
          // Not where the owner does: the collector sees what an object of Python holds, and not this.
          way.keeps_memory ? nullptr : std::move(layout->held),
          layout->device,
          layout->stream};
}

// For Python's garbage collector: what an array refers to may refer to the array's description.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Buffer>(self)->owner.ptr());
  return 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<Buffer>(self)->owner = nb::none();
  return 0;
}

PyType_Slot buffer_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)}, {Py_tp_clear, reinterpret_cast<void*>(&clear)}, {0, nullptr}};

}  // namespace

std::optional<engine::Array> view_of(nb::handle array, bool writable) {
  const auto view = [](const void* data, std::span<const std::uint64_t> shape, const auto& from) {
    return engine::Array{static_cast<std::byte*>(const_cast<void*>(data)), engine::Shape::of(shape),
                         static_cast<DType>(from.dtype), from.device, from.stream};
  };
  if (nb::inst_check(array) && nb::isinstance<Buffer>(array)) {
    const auto& buffer = nb::cast<const Buffer&>(array);
    if (buffer.dtype < 0 || !buffer.contiguous) return std::nullopt;
    return view(reinterpret_cast<const void*>(buffer.address), buffer.shape, buffer);
  }
  const Way& way = way_of(array);
  if (way.is_numpy) return numpy_view(array, writable);
  const ExchangeApi* api = way.exchange;
  const std::optional<Layout> layout = api == nullptr ? std::nullopt : layout_of(*api, array);
  if (!layout || layout->dtype < 0 || !layout->contiguous()) return std::nullopt;
  const auto* extents = reinterpret_cast<const std::uint64_t*>(layout->shape);  // none is negative
  return view(layout->data, {extents, static_cast<std::size_t>(layout->dims)}, *layout);
}

std::optional<std::uintptr_t> current_stream(nb::handle array, int device) {
  const ExchangeApi* api = way_of(array).exchange;
  return api == nullptr ? std::nullopt : stream_by(*api, device);
}

void register_buffer(nb::module_& module) {
  nb::class_<Buffer>(module, "Buffer", nb::type_slots(buffer_slots),
                     "A contiguous piece of memory: `address` of the first element, `shape` with the outermost "
                     "extent first, `dtype` as the engine's code, `owner`, which keeps the memory alive. `device`: the "
                     "number of the GPU that it lies on, -1 for the host; `stream`: the handle of that GPU's stream in "
                     "which it is made.")
      .def(
          "__init__",
          [](Buffer* self, std::uintptr_t address, std::vector<std::uint64_t> shape, int dtype, nb::object owner,
             int device, std::uintptr_t stream) {
            new (self) Buffer{address, std::move(shape), dtype, true, std::move(owner), nullptr, device, stream};
          },
          nb::arg("address"), nb::arg("shape"), nb::arg("dtype"), nb::arg("owner").none(),
          nb::arg("device") = engine::kHost, nb::arg("stream") = 0)
      .def_ro("address", &Buffer::address)
      .def_prop_ro("shape",
                   [](const Buffer& buffer) {
                     nb::list extents;
                     for (const std::uint64_t extent : buffer.shape) extents.append(extent);
                     return nb::tuple(extents);
                   })
      .def_ro("dtype", &Buffer::dtype)
      .def_ro("owner", &Buffer::owner)
      .def_ro("device", &Buffer::device)
      .def_ro("stream", &Buffer::stream)
      .def_ro("contiguous", &Buffer::contiguous);
  module.def(
      "describe", &describe, nb::arg("array"), nb::arg("writable"),
      "The array as a Buffer; its dtype may be -1, and it may be not contiguous. TypeError for what is no array in "
      "host "
      "memory, or may not be written where `writable`.");
}

}  // namespace ringcore::python
