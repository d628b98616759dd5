// A shared library that is opened at run time, because this one must also work where it is not installed.
#pragma once

#include <span>
#include <string>

namespace ringcore {

// Stays open for the life of the process: what it hands out is used in destructors and on other threads.
class Library {
 public:
  // Takes the first of `names` (paths, or names for the system's search) that the process has loaded already, else the
  // first that can be opened. Throws Error{kResource} with the reason for each.
  Library(const std::string& title, std::span<const std::string> names);

  // Throws Error{kResource} when the library has no such function.
  template <class Function>
  void load(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  // Leaves null what the library is too old for.
  template <class Function>
  void load_if_there(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(find(name));
  }
  // The file that was opened.
  const std::string& path() const { return path_; }

 private:
  void* find(const char* name) const;
  void* symbol(const char* name) const;

  std::string title_;
  std::string path_;
  void* handle_ = nullptr;
};

}  // namespace ringcore
