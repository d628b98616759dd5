// Entries of logs, as tests make them.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "engine/negotiation.hpp"

namespace ringcore::testing {

inline std::shared_ptr<const engine::Descriptor> tensor(const std::string& name, std::uint64_t rows = 1,
                                                        Collective collective = Collective::kAllreduce, Rank root = 0) {
  engine::Descriptor descriptor;
  descriptor.name = name;
  descriptor.collective = collective;
  descriptor.dtype = DType::kFloat32;
  descriptor.root = root;
  descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 2>{rows, 2});
  return std::make_shared<const engine::Descriptor>(descriptor);
}

inline engine::Entry entry_for(const std::shared_ptr<const engine::Descriptor>& descriptor) {
  engine::Entry entry{.type = engine::RecordType::kOperation};
  entry.signature = descriptor->signature();
  entry.name_hash = descriptor->name_hash();
  entry.descriptor = descriptor;
  entry.rows = descriptor->shape.rows();
  return entry;
}

}  // namespace ringcore::testing
