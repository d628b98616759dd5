#include "base/library.hpp"

#include <dlfcn.h>
#include <link.h>

#include "base/error.hpp"

namespace ringcore {

Library::Library(const std::string& title, std::span<const std::string> names) : title_(title) {
  std::string reasons;
  for (const int mode : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const std::string& name : names) {
      handle_ = ::dlopen(name.c_str(), mode);
      if (handle_ != nullptr) {
        link_map* map = nullptr;
        path_ = ::dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 ? map->l_name : name;
        return;
      }
      const char* reason = ::dlerror();
      if ((mode & RTLD_NOLOAD) == 0) reasons += (reasons.empty() ? "" : "; ") + std::string(reason);
    }
  }
  throw Error(ErrorKind::kResource, title_ + " cannot be opened: " + (reasons.empty() ? "no file is known" : reasons));
}

void* Library::find(const char* name) const { return ::dlsym(handle_, name); }

void* Library::symbol(const char* name) const {
  void* found = find(name);
  if (found == nullptr) {
    throw Error(ErrorKind::kResource, title_ + " (" + path_ + ") has no function " + name + ": it is too old");
  }
  return found;
}

}  // namespace ringcore
