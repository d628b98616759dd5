// What neighbours in the tree say, in any order, while this member announces, leaves and is left.
#include "base/error.hpp"
#include "engine/agreement_tree.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

using engine::AgreementTree;

engine::Entry barrier(std::uint8_t name) {
  engine::Descriptor descriptor;
  descriptor.name = std::string(1, static_cast<char>('a' + name % 8));
  descriptor.collective = Collective::kBarrier;
  engine::Entry entry{.type = engine::RecordType::kOperation};
  entry.signature = descriptor.signature();
  entry.name_hash = descriptor.name_hash();
  entry.descriptor = std::make_shared<const engine::Descriptor>(std::move(descriptor));
  return entry;
}

void take_all(AgreementTree& tree) {
  tree.take_up();
  tree.take_down();
  for (const auto& delivery : tree.take_delivered()) {
    for (const int member : delivery.members) {
      require(member >= 0 && member < tree.shape().size(), "what is delivered is a member's");
    }
  }
}

void act(AgreementTree& tree, Input& bytes, std::uint64_t& position, bool& over) {
  const auto& shape = tree.shape();
  switch (bytes.below(6)) {
    case 0:
      if (!over && tree.end_reason() == nullptr) tree.append(barrier(bytes.take<std::uint8_t>()), position++);
      break;
    case 1: tree.want_open(bytes.flip()); break;
    case 2:
      if (!std::exchange(over, true)) tree.end({.member = 0, .removes = bytes.flip(), .why = "it is over"});
      break;
    default: {
      const std::size_t neighbour = bytes.below(shape.children.size() + (shape.is_root() ? 0 : 1));
      const int member = neighbour < shape.children.size() ? shape.children[neighbour].member : shape.parent;
      tree.receive(member, bytes.piece(bytes.take<std::uint8_t>()));
    }
  }
  take_all(tree);
}

}  // namespace

void tree(Bytes input) {
  Input bytes(input);
  const std::vector<int> host_of = {0, 0, 1, 1, 2, 2, 3};
  const int self = static_cast<int>(bytes.below(3));
  AgreementTree tree(engine::TreeShape::make(host_of, self, 2));
  if (tree.shape().children.empty() && tree.shape().is_root()) return;
  std::uint64_t position = 0;
  bool over = false;
  try {
    while (!bytes.empty()) act(tree, bytes, position, over);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kProtocol, "what cannot be read is an error of the protocol");
  }
}

}  // namespace ringcore::fuzz
