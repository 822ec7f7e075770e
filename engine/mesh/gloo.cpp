// Collectives on the CPU with Gloo.
#include "gloo.h"

#include "store/sockets.h"

#include <redco/error.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <signal.h>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace redco::mesh {

using namespace store;

namespace {

using Tensors = std::vector<at::Tensor>;

std::shared_ptr<::gloo::transport::Device> make_device(const std::string& store_address,
                                                       bool one_host) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0')
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  std::string own = address_towards(store_address);
  // A host's own name often resolves to its loopback address.
  require(one_host || is_loopback(store_address) || !is_loopback(own), "the address ",
          store_address, " of process 0's host leads to ", own,
          ", where other hosts cannot answer: give the host's address on the network, or name the "
          "interface in GLOO_SOCKET_IFNAME");
  return c10d::ProcessGroupGloo::createDeviceForHostname(own);
}

// Gloo writes to its sockets in a way that raises SIGPIPE if the peer has closed the connection,
// which would end the program. Its threads block all signals; while an object of this class lives,
// the calling thread blocks this one.
class BrokenPipeBlock {
 public:
  BrokenPipeBlock() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&broken_pipe_);
    sigaddset(&broken_pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe_, &before_);
  }
  ~BrokenPipeBlock() {
    constexpr timespec no_time = {};
    if (!was_pending_) sigtimedwait(&broken_pipe_, nullptr, &no_time);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipeBlock(const BrokenPipeBlock&) = delete;
  BrokenPipeBlock& operator=(const BrokenPipeBlock&) = delete;

 private:
  sigset_t broken_pipe_, before_;
  bool was_pending_;
};

// Gloo terminates the program when a peer sends more bytes than expected. Messages are matched to
// collectives by a tag; here the tag contains a digest of the collective, so that one of another
// kind or size never matches.
class MatchingGloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void expect(uint64_t digest) {
    // 10 bits suffice to number all collectives that are in progress together. The tag of a single
    // message is a positive int.
    constexpr uint32_t number_bits = 10, digest_bits = 31 - number_bits;
    number_ = (number_ + 1) % (1U << number_bits);
    collectiveCounter_ = number_ << digest_bits | uint32_t(digest % (1U << digest_bits));
  }

  c10::intrusive_ptr<c10d::Work> exchange(const Tensors& sent, const Tensors& received) {
    uint32_t tag = nextTag();
    auto work = c10::make_intrusive<Exchange>(getContext(tag));
    BrokenPipeBlock broken_pipe;  // `recv` writes too
    try {
      // Posts the receives first: a message without a posted receive has to wait.
      for (int i = 1; i < size_; ++i) {
        int from = (rank_ + size_ - i) % size_;
        Tensors tensor{received[size_t(from)]};
        if (tensor[0].numel() > 0) work->messages.push_back(recv(tensor, from, int(tag)));
      }
      for (int i = 1; i < size_; ++i) {
        int to = (rank_ + i) % size_;
        Tensors tensor{sent[size_t(to)]};
        if (tensor[0].numel() > 0) work->messages.push_back(send(tensor, to, int(tag)));
      }
    } catch (const std::exception&) {
      work->failure = std::current_exception();  // a failure of the connection: `wait` throws it
    }
    enqueue(work);
    return work;
  }

 private:
  // Completes when its last message completes.
  struct Exchange final : AsyncWork {
    explicit Exchange(std::shared_ptr<::gloo::Context> context)
        : AsyncWork(std::move(context), {}, c10d::OpType::ALLTOALL, 0, c10d::kUnsetTimeout) {}

    void run() override {
      if (failure) std::rethrow_exception(failure);
      for (const auto& message : messages) message->wait();
    }
    const Tensors getInputTensors() override { return {}; }
    const Tensors getOutputTensors() override { return {}; }

    std::vector<c10::intrusive_ptr<c10d::Work>> messages;
    std::exception_ptr failure;
  };

  uint32_t number_ = 0;
};

}  // namespace

Backend make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                  std::chrono::milliseconds timeout, const std::string& store_address,
                  bool one_host) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(make_device(store_address, one_host));
  auto gloo = c10::make_intrusive<MatchingGloo>(store, int(rank), int(size), options);
  // Gloo's own timeout must never apply: callers have a timeout, and on a failure Gloo would close
  // connections of other groups too.
  gloo->setTimeout(std::chrono::hours(24 * 365));
  Backend backend;
  backend.c10d = gloo;
  backend.exchange = [gloo](const Tensors& sent, const Tensors& received) {
    return gloo->exchange(sent, received);
  };
  backend.expect = [gloo](uint64_t digest) { gloo->expect(digest); };
  return backend;
}

}  // namespace redco::mesh
