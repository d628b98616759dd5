// Carriers that have something to tell each other, or to bring, before they can work: who waits behind whom.
//
// All ranks take the same decisions in the same order. What depends on a rank's own device (is its message known, has a
// tensor arrived in the host) must therefore not change the order: until it is known, everything that is released in
// this process set waits in `deferred_`.
#include <algorithm>

#include "base/error.hpp"
#include "engine/schedule.hpp"

namespace ringcore::engine {

// The last carrier takes what no other does: nothing has to wait for it.
Schedule::Post* Schedule::find_concerned(const Descriptor& descriptor) {
  for (std::size_t i = 0; i + 1 < posts_.size(); ++i) {
    if (posts_[i].carrier->concerns(descriptor)) return &posts_[i];
  }
  return nullptr;
}

Schedule::Post& Schedule::find_post(const Descriptor& descriptor) {
  for (std::size_t i = 0; i + 1 < posts_.size(); ++i) {
    if (posts_[i].ready && posts_[i].carrier->takes(descriptor)) return posts_[i];
  }
  return posts_.back();
}

void Schedule::admit(Operation& operation) {
  Post* const post = find_concerned(operation.descriptor);
  if (post == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, "'" + operation.descriptor.name +
                                                 "' lies on a device that nothing here can work on. Remedy: pass a " +
                                                 "tensor in the host's memory.");
  }
  const std::size_t known = devices_.size();
  number_devices(operation);
  try {
    post->carrier->admit(operation);
  } catch (...) {
    devices_.resize(known);  // it was not their first use
    throw;
  }
}

void Schedule::number_devices(Operation& operation) {
  const auto number = [this](Operation& part) {
    auto known = std::find(devices_.begin(), devices_.end(), part.on_device->device);
    if (known == devices_.end()) known = devices_.insert(known, part.on_device->device);
    return part.descriptor.device_index = static_cast<std::uint8_t>(known - devices_.begin());
  };
  if (operation.on_device != nullptr) number(operation);
  for (const auto& part : operation.parts) number(*part);
  if (!operation.parts.empty()) operation.descriptor.device_index = operation.parts.front()->descriptor.device_index;
}

// Goes on with the exchange of the carrier's messages; true when it is ready for that.
bool Schedule::prepare(Post& post, const Descriptor& descriptor) {
  while (!post.carrier->ready(descriptor)) {
    if (post.exchange == nullptr) {
      const std::span<const std::byte> message = post.carrier->message(descriptor);
      if (message.empty()) return false;
      exchange(post, message);
    }
    if (!post.exchange->done()) return false;
    post.carrier->hear({post.exchange->result.data(), post.exchange->result.size()});
    post.exchange = nullptr;
    if (!post.carrier->ready(descriptor)) continue;
    if (std::string remark = post.carrier->remark(); !remark.empty()) warnings_.push_back(std::move(remark));
  }
  return post.ready = true;
}

// An allgather of our own, which is the next operation on every member: all others wait.
void Schedule::exchange(Post& post, std::span<const std::byte> message) {
  post.exchange = std::make_shared<Operation>();
  Operation& operation = *post.exchange;
  operation.descriptor.name = std::string(post.carrier->name()) + " of process set " + std::to_string(id_);
  operation.descriptor.collective = Collective::kAllgather;
  operation.descriptor.dtype = DType::kUInt8;
  operation.descriptor.shape = Shape{.dims = 2, .extent = {1, message.size()}};
  operation.input = message.data();
  Release release;
  release.contributions.resize(static_cast<std::size_t>(size()));
  for (Contribution& contribution : release.contributions) {
    contribution.present = true;
    contribution.rows = 1;
  }
  release_one({post.exchange, &operation.descriptor}, post.exchange, release);
}

bool Schedule::release_deferred() {
  bool moved = false;
  std::deque<Deferred> waiting = std::exchange(deferred_, {});
  while (!waiting.empty()) {
    Deferred& next = waiting.front();
    if (!next.offer.empty()) {
      if (tasks_ > 0) break;
      for (const Post& post : posts_) post.carrier->offer(next.offer);
    } else if (!next.release) {
      flush();
    } else {
      const Descriptor& descriptor = *next.release->descriptor;
      if (next.post != nullptr && !prepare(*next.post, descriptor)) break;
      const bool refused = next.post != nullptr && refuse(*next.post->carrier, descriptor, next.own);
      if (!refused) {
        const bool brought =
            next.post == nullptr || next.own == nullptr || fetched(*next.post->carrier, descriptor, *next.own);
        if (!brought) break;
        release_now(std::move(*next.release), std::move(next.own));
      }
    }
    waiting.pop_front();
    moved = true;
  }
  deferred_ = std::move(waiting);
  return moved;
}

// Whether the tensors that the carrier does not take have come to where another one can work on them.
bool Schedule::fetched(Carrier& carrier, const Descriptor& descriptor, Operation& own) {
  const auto fetch = [&carrier](const Descriptor& described, Operation& operation) {
    if (carrier.takes(described)) return true;
    if (operation.on_device != nullptr) operation.on_device->fetched_by = &carrier;
    return carrier.fetch(operation);
  };
  if (!descriptor.is_group()) return fetch(descriptor, own);
  bool all = true;
  for (std::size_t i = 0; i < descriptor.parts.size(); ++i) {
    all = fetch(*descriptor.parts[i], *own.parts[i]) && all;
  }
  return all;
}

// Fails the operation, here as on every other rank.
bool Schedule::refuse(Carrier& carrier, const Descriptor& descriptor, const std::shared_ptr<Operation>& own) {
  const std::string why = carrier.refusal(descriptor);
  if (why.empty()) return false;
  if (own == nullptr) return true;
  own->error = std::make_shared<const Error>(ErrorKind::kInvalidArgument, why);
  done_.push_back(own);
  return true;
}

bool Schedule::drained() const {
  return std::all_of(posts_.begin(), posts_.end(), [](const Post& post) { return post.carrier->drained(); });
}

bool Schedule::forget_ended() {
  for (const Post& post : posts_) post.carrier->progress();
  return drained();
}

void Schedule::watch(Nanoseconds now, Nanoseconds limit) {
  for (const Post& post : posts_) post.carrier->watch(now, limit);
}

}  // namespace ringcore::engine
