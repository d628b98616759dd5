// Data that goes along with announcements in a tree: of small allreduces and broadcasts that somebody waits for.
//
// What a member puts in goes up with its announcement. Where all of a subtree have come with the same operation, their data
// becomes one sum on the way, the member's own first and then each child's, so that the order depends on the tree alone. The
// root sends the sum of all down: who gets it is done, and all get the same bits. Where members differ, or somebody looks
// before all have come, the data is dropped for all of them, and the operation runs as any other does.
#pragma once

#include <vector>

#include "engine/negotiation.hpp"

namespace ringcore::engine {

// Above that a plan moves less, as it deals the elements out.
inline constexpr std::size_t kMaxTreeDataBytes = 2048;

// Whether the operation may take its data along. Halves are summed in float32 at one place only.
bool may_carry_data(const Descriptor& descriptor);
// What a member puts in: to a broadcast all but the root give nothing but zeros, so that the sum is what the root has.
std::vector<std::byte> data_of(const Operation& operation, int self);
bool carries_data(const Entry& entry);
void drop_data(Entry& entry);
// Adds the data of another one to it.
void add_data(Entry& sum, const Entry& other);

}  // namespace ringcore::engine
