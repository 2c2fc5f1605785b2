// SPDX-License-Identifier: Apache-2.0
// Fuzz target: cutting a stream into frames, as it comes through a ring in shared memory and through a socket. The
// first byte says which and whether the input is the stream itself, in pieces, or what a sender is given to frame; then
// pieces of two bytes of length and content.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "host/link.h"
#include "input.h"

using namespace hvd;

namespace {

using Frames = std::vector<std::pair<FrameKind, std::string>>;

void take(FrameParser& parser, Frames* frames) {
  FrameKind kind;
  std::string payload;
  while (parser.next(&kind, &payload)) frames->emplace_back(kind, payload);
}

// The stream in pieces, and at once, gives the same frames.
void raw_stream(Input input) {
  FrameParser whole, cut;
  Frames of_whole, of_cut;
  std::string all;
  while (!input.empty()) {
    const std::string_view piece = input.sized();
    all += piece;
    cut.feed(piece.data(), piece.size());
    take(cut, &of_cut);
  }
  whole.feed(all.data(), all.size());
  take(whole, &of_whole);
  require(of_whole == of_cut && whole.broken() == cut.broken());
}

void raw_ring(Input input) {
  const auto ring = std::make_unique<RequestRing>();
  RingReceiver receiver;
  receiver.attach(ring.get());
  Frames frames;
  while (!input.empty()) {
    // What a damaged peer may leave there: any number of bytes written, any bytes.
    const uint64_t claimed = input.byte() == 0xff ? UINT64_MAX >> (input.byte() & 63) : 0;
    const std::string_view piece = input.sized();
    const uint64_t written = ring->written.load();
    for (size_t i = 0; i < piece.size(); ++i) ring->bytes[(written + i) % kRingBytes] = piece[i];
    ring->written.store(claimed != 0 ? claimed : written + piece.size());
    require(receiver.has_data() == (ring->written.load() != ring->read.load()));
    receiver.receive();
    take(receiver.frames(), &frames);
    if (receiver.frames().broken()) return;
  }
}

void raw_socket(Input input) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  SocketLink link(fds[0], 1);
  Frames frames;
  while (!input.empty()) {
    const std::string_view piece = input.sized();
    require(piece.empty() || send(fds[1], piece.data(), piece.size(), MSG_NOSIGNAL) > 0);
    link.receive();
    take(link.frames(), &frames);
  }
  close(fds[1]);
  link.send(FrameKind::kLeave, "nobody reads this");
  while (!link.closed()) link.receive();
  require(!link.receive() && link.bytes_queued() >= link.bytes_sent());
}

// What is sent arrives, through links that are full now and then.
void framed(Input input) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  SocketLink from(fds[0], 1);
  SocketLink moved(fds[1], 0);
  SocketLink to(std::move(moved));
  const auto ring = std::make_unique<RequestRing>();
  RingSender sender;
  RingReceiver receiver;
  sender.attach(ring.get());
  receiver.attach(ring.get());
  Frames sent, by_socket, by_ring;
  while (!input.empty()) {
    const auto kind = static_cast<FrameKind>(input.byte());
    std::string payload;
    for (int times = input.byte() & 63, size = 1 + input.byte(); times > 0; --times) payload.append(size * 7, 'p');
    payload += input.sized();
    sent.emplace_back(kind, payload);
    from.send(kind, payload);
    sender.send(kind, payload);
  }
  while (by_socket.size() < sent.size() || by_ring.size() < sent.size()) {
    from.pump();
    to.receive();
    take(to.frames(), &by_socket);
    receiver.receive();
    take(receiver.frames(), &by_ring);
    if (sender.can_pump()) sender.pump();
    require(!to.frames().broken() && !receiver.frames().broken());
  }
  require(by_socket == sent && by_ring == sent && !from.wants_to_write());
  from.finish_sending();
  while (!to.closed()) to.receive();
  require(to.peer() == 0 && to.fd() >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Input input(data + 1, size - 1);
  switch (data[0] & 3) {
    case 0:
      raw_stream(input);
      break;
    case 1:
      raw_ring(input);
      break;
    case 2:
      raw_socket(input);
      break;
    default:
      framed(input);
  }
  return 0;
}
