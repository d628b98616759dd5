#include "plan/generator.hpp"

#include <algorithm>

namespace ringcore::plan {

const Generator& generator(std::string_view name) {
  const auto named = [name](const Generator* generator) { return generator->name() == name; };
  return **std::find_if(generators().begin(), generators().end(), named);
}

}  // namespace ringcore::plan
