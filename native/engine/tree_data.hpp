// Data that goes along with announcements in a tree: of small allreduces, broadcasts and allgathers that somebody waits for.
//
// What a member puts in goes up with its announcement. Where all of a subtree have come with the same operation, their data
// becomes one sum on the way, the member's own first and then each child's, so that the order depends on the tree alone. The
// root sends the sum of all down: who gets it is done, and all get the same bits. What is gathered, as many rows from each,
// is put in a row instead. Where members differ, or somebody looks before all have come, the data is dropped for all of
// them, and the operation runs as any other does.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/negotiation.hpp"

namespace ringcore::engine {

// How much a member may take along, of so many. Above 2 KiB a plan moves less of what is summed, as it deals the elements
// out. Of what is gathered everybody has to get all: 8 KiB is a word of each of 1,024 members.
std::size_t most_tree_data(const Descriptor& descriptor, std::size_t members);
// Whether the operation may take its data along. Halves are summed in float32 at one place only.
bool may_carry_data(const Descriptor& descriptor);
// What a member puts in: to a broadcast all but the root give nothing but zeros, so that the sum is what the root has.
std::vector<std::byte> data_of(const Operation& operation, int self);
bool carries_data(const Entry& entry);
void drop_data(Entry& entry);
// Whether it is as much data as so many members give, who say the same.
bool has_data_of(const Entry& entry, int members);
// Adds the data of another one to it: of the next members in the order of the tree.
void add_data(Entry& sum, const Entry& other);
// All members' data, which `order` names in the order of the tree.
std::vector<std::byte> data_of_all(const Entry& sum, std::span<const int> order);

}  // namespace ringcore::engine
