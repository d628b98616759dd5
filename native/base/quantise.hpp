// Values as they travel where less is sent: integers of 8 or 4 bits, in blocks of kQuantisedBlock values with a scale
// each, of which they are multiples. The last block may be shorter.
//
// A block is 16 bits of scale (the upper half of a float32, little-endian), then its integers. The scale is the largest
// magnitude of the block divided by 127 or 7. It has so few digits that its multiples are exact in float32: quantising
// what has been quantised, with the same borders of blocks, changes nothing. So a sum that is rounded where it is
// complete passes through any number of hands and is the same everywhere.
//
// A block in which something is infinite or no number is NaN as a whole: nothing that went wrong gets lost. Values whose
// scale would be below float32's normal numbers become zero. float64 is sent in float32's range.
#pragma once

#include <cstddef>

#include "base/types.hpp"

namespace ringcore {

inline constexpr std::size_t kQuantisedBlock = 128;

// float32 and float64: what has fewer digits could not hold the multiples.
bool can_quantise(DType dtype);

// Of so many values. For a compression other than none, as all below.
std::size_t quantised_bytes(Compression compression, std::size_t count);
// Of what float32 takes.
double quantised_share(Compression compression);
// How many values have come with the first so many bytes of `count` values, of whole blocks.
std::size_t quantised_values(Compression compression, std::size_t bytes, std::size_t count);

// `to` and `from` need no alignment.
void quantise(Compression compression, DType dtype, const std::byte* values, std::size_t count, std::byte* to);
void dequantise(Compression compression, DType dtype, const std::byte* from, std::size_t count, std::byte* values);
// values[i] = (values[i] + from[i]) * scale.
void add_quantised(Compression compression, DType dtype, const std::byte* from, std::size_t count, std::byte* values,
                   double scale);
// What the values are after they were quantised.
void round_to_quantised(Compression compression, DType dtype, std::byte* values, std::size_t count);

}  // namespace ringcore
