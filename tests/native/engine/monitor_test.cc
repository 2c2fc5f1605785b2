// SPDX-License-Identifier: Apache-2.0
// The monitor tells a stopped, a debugged, a silent and a dead process apart, and measures nobody's silence over a time
// in which it did not run itself. Peers are real processes that never beat.
#include "liveness/monitor.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <thread>

#include "check.h"
#include "negotiation/frames.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/fault_point.h"
#include "platform/process_state.h"
#include "platform/warning.h"

using namespace hvd;

namespace {

// A child that waits for its end.
class Child {
 public:
  explicit Child(bool traced = false) {
    pid_ = fork();
    if (pid_ == 0) {
      if (traced) {
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        raise(SIGTRAP);
      }
      for (;;) pause();
    }
    if (traced) waitpid(pid_, nullptr, WUNTRACED);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  int pid() const { return pid_; }

 private:
  int pid_;
};

// What a monitor said, and a wait for it.
class Heard {
 public:
  // With `pause_ms`, the monitor's thread stands still for so long after its first look.
  Monitor::Events events(int pause_ms) {
    Monitor::Events events;
    events.on_loss = [this](int rank, const std::string& text) { say("lost " + std::to_string(rank) + ": " + text); };
    events.on_debugger = [this](const std::string& text) { say("debugger: " + text); };
    events.on_frame = [this](int peer, FrameKind kind, const std::string&) {
      say("frame " + std::to_string(static_cast<int>(kind)) + " of " + std::to_string(peer));
    };
    events.on_tick = [this, pause_ms, paused = false]() mutable {
      if (!std::exchange(paused, true)) sleep_ms(pause_ms);
      say("");
    };
    events.on_pause = [] {};
    return events;
  }
  // Empty where `ticks` went by without a word.
  std::string wait(int ticks) {
    std::unique_lock lock(mutex_);
    const int until = ticks_ + ticks;
    changed_.wait(lock, [&] { return !words_.empty() || ticks_ >= until; });
    if (words_.empty()) return "";
    const std::string first = words_.front();
    words_.erase(words_.begin());
    return first;
  }

 private:
  void say(const std::string& word) {
    const std::lock_guard lock(mutex_);
    if (word.empty()) {
      ++ticks_;
    } else {
      words_.push_back(word);
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> words_;
  int ticks_ = 0;
};

struct Watching {
  Heard heard;
  std::unique_ptr<Segment> segment;
  std::unique_ptr<Monitor> monitor;  // ends first

  explicit Watching(Monitor::Options options, int pause_ms = 0) {
    EXPECT(Segment::create(1, 2, 0, &segment).ok());
    EXPECT(Monitor::start(*segment, 0, std::move(options), heard.events(pause_ms), &monitor).ok());
  }
};

Monitor::Options peer(const Child& child, uint64_t frozen_ms) {
  Monitor::Options options;
  options.peers = {{7, 1, child.pid(), -1}};
  options.frozen_ms = frozen_ms;
  return options;
}

bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(silence_counts_from_the_last_change_and_anew_after_a_pause) {
  Silence silence;
  EXPECT(silence.observe(5, 1000) == 0);
  EXPECT(silence.observe(5, 1400) == 400);
  EXPECT(silence.observe(6, 1500) == 0);
  EXPECT(silence.observe(6, 2500) == 1000);
  silence.restart(2600);
  EXPECT(silence.observe(6, 2700) == 100);
}

TEST(a_stopped_process_is_named_as_stopped) {
  const Child child;
  child.stop();
  EXPECT(process_state(child.pid()) == 'T');
  Watching watching(peer(child, 700));
  const std::string word = watching.heard.wait(6);
  EXPECT(holds(word, "lost 7: rank 7 (process ") && holds(word, "was stopped by a signal and has not run for"));
  EXPECT(watching.heard.wait(2).empty());  // once
}

TEST(a_process_that_would_run_has_ten_times_as_long) {
  const pid_t busy = fork();  // its main thread sleeps
  if (busy == 0) {
    std::thread([] {
      for (;;) getpid();
    }).detach();
    for (;;) pause();
  }
  while (process_state(busy) != 'R') sleep_ms(10);
  Monitor::Options options;
  options.peers = {{7, 1, busy, -1}};
  options.frozen_ms = 300;
  Watching watching(std::move(options));
  EXPECT(watching.heard.wait(4).empty());
  EXPECT(holds(watching.heard.wait(20), "is frozen: it has given no sign of life for"));
  kill(busy, SIGKILL);
  waitpid(busy, nullptr, 0);
}

TEST(a_peer_of_another_pid_namespace_is_watched_by_its_socket) {
  auto stranger = std::make_unique<Child>();  // has the peer's number here
  int ends[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Monitor::Options options;
  options.peers = {{7, 1, stranger->pid(), ends[0], false}};
  options.frozen_ms = 0;
  Watching watching(std::move(options));
  stranger.reset();
  EXPECT(watching.heard.wait(3).empty());
  close(ends[1]);
  EXPECT(holds(watching.heard.wait(6), "died without leaving the job"));
  close(ends[0]);
}

TEST(a_silent_peer_of_another_pid_namespace_is_not_taken_for_a_stranger) {
  const Child stranger;
  stranger.stop();
  Monitor::Options options = peer(stranger, 700);
  options.peers[0].is_known = false;
  Watching watching(std::move(options));
  EXPECT(holds(watching.heard.wait(6), "and its process does not exist on this host"));
}

TEST(a_silent_process_is_named_as_frozen) {
  const Child child;
  Watching watching(peer(child, 700));
  EXPECT(holds(watching.heard.wait(6), "is frozen: it has given no sign of life for"));
}

TEST(a_process_that_a_debugger_holds_is_no_loss) {
  if (kEmulated) {
    std::printf("not run: an emulated processor has no ptrace\n");
    return;
  }
  const Child child(true);
  EXPECT(process_state(child.pid()) == 't');
  Watching watching(peer(child, 700));
  EXPECT(holds(watching.heard.wait(6), "debugger: rank 7 (process "));
  EXPECT(watching.heard.wait(3).empty());  // said once, and never a loss
}

TEST(a_dead_process_is_noticed_at_once) {
  auto child = std::make_unique<Child>();
  Watching watching(peer(*child, 0));
  EXPECT(watching.heard.wait(1).empty());
  const uint64_t killed_ns = now_ns();
  child.reset();
  EXPECT(holds(watching.heard.wait(2), "died without leaving the job"));
  EXPECT(static_cast<int64_t>(now_ns() - killed_ns) < promised_ns(500));
}

TEST(a_process_that_beats_or_has_left_is_not_missed) {
  for (const bool left : {false, true}) {
    const Child child;
    Watching watching(peer(child, 700));
    if (left) watching.segment->rank(1).left.store(1);
    for (int tick = 0; tick < 4; ++tick) {
      if (!left) watching.segment->rank(1).beat.fetch_add(1);
      EXPECT(watching.heard.wait(1).empty());
    }
  }
}

TEST(a_pause_of_this_process_is_no_silence_of_the_others) {
  const Child child;
  Watching watching(peer(child, 2500), 4000);
  EXPECT(watching.heard.wait(1).empty());  // ends with the pause
  EXPECT(watching.heard.wait(2).empty());
  EXPECT(holds(watching.heard.wait(8), "is frozen"));
}

TEST(a_far_leader_is_lost_when_it_says_nothing_and_heard_when_it_says_why) {
  int fds[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  Monitor::Options options;
  options.far_peers = {{3, fds[0]}};
  options.lost_ms = 1200;
  Watching watching(options);
  SocketLink other(fds[1], 0);
  for (int tick = 0; tick < 4; ++tick) {
    other.send(FrameKind::kBeat, {});
    EXPECT(watching.heard.wait(1).empty());
  }
  EXPECT(other.receive());  // its own beats
  other.send(FrameKind::kAbort, abort_payload({HVD_ABORTED, "why", 1}));
  EXPECT(watching.heard.wait(2) == "frame 8 of 3");
  const std::string word = watching.heard.wait(8);
  EXPECT(holds(word, "lost 3: rank 3 has given no sign of life for") && holds(word, "hint:"));
}

namespace {

// A connection inside this machine. Nobody reads or writes at its second end, as if that process were stopped.
void connect_over_tcp(int (&fds)[2]) {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT(bind(listening, any, length) == 0 && listen(listening, 1) == 0 && getsockname(listening, any, &length) == 0);
  fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT(connect(fds[0], any, length) == 0);
  fds[1] = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT(fds[1] >= 0);
  close(listening);
}

}  // namespace

TEST(a_silent_far_leader_is_waited_for_while_its_host_answers_if_nobody_is_to_be_taken_for_frozen) {
  for (const uint64_t frozen_ms : {0, 3000}) {
    int fds[2];
    connect_over_tcp(fds);
    Monitor::Options options;
    options.far_peers = {{3, fds[0]}};
    options.lost_ms = 700;
    options.frozen_ms = frozen_ms;
    Watching watching(options);
    const std::string word = watching.heard.wait(9);  // longer than a host may take to answer
    EXPECT(frozen_ms == 0 ? word.empty() : holds(word, "lost 3: rank 3 has given no sign of life for"));
    close(fds[1]);
  }
}

TEST(a_far_leader_whose_host_does_not_answer_is_lost_even_if_nobody_is_to_be_taken_for_frozen) {
  int fds[2];  // no kernel answers on these
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  Monitor::Options options;
  options.far_peers = {{3, fds[0]}};
  options.lost_ms = 700;
  options.frozen_ms = 0;
  Watching watching(options);
  EXPECT(holds(watching.heard.wait(6), "lost 3: rank 3 has given no sign of life for"));
  close(fds[1]);
}

TEST(names_are_shown_short_and_on_one_line) {
  EXPECT(quote_name("allreduce.x") == "`allreduce.x`");
  EXPECT(quote_name("a\nb\tc\x7f") == "`a\\nb\\x09c\\x7f`");
  EXPECT(plain("a\n\tb\x1b[31m\x07\xc2\x9b \xc2\xa0") == "a\n\tb\\x1b[31m\\x07\\x9b \xc2\xa0");
  EXPECT(plain("\xe2\x80\xae \xe2\x81\xa6 \xe2\x80\xa8 \xd8\x9c") == "\\u202e \\u2066 \\u2028 \\u061c");
  EXPECT(plain("\x9b\xff\xe2\x80") == "\\x9b\\xff\\xe2\\x80");  // not UTF-8
  EXPECT(plain("\xf0\x9f\x98\x80\xe2\x82\xac") == "\xf0\x9f\x98\x80\xe2\x82\xac");
  const std::string shown = quote_name(std::string(4000, 'n') + "end");
  EXPECT(shown.size() < 160 && holds(shown, "end` (4003 bytes)") && holds(shown, "nn...nn"));
  EXPECT(quote_name("noname.3") == "unnamed operation");
  Descriptor descriptor;
  descriptor.kind = HVD_BROADCAST;
  descriptor.tensors.push_back({HVD_FLOAT32, {3}});
  EXPECT(quote_name("noname.3", descriptor.encode()) == "unnamed broadcast");
  std::string accents;
  for (int i = 0; i < 100; ++i) accents += "\xc3\xa9";
  EXPECT(holds(quote_name("a" + accents), "\xa9...\xc3"));  // no character is cut in two
}

TEST(fault_points_are_off_and_take_only_what_they_know) {
  EXPECT(!fault_points_armed.load());
  for (const char* wrong : {"append", "append:", "append:explode", "append@0:kill", "append@x:kill",
                            "append:kill=", "append:kill=-1", "append:exit", "append:exitx"}) {
    EXPECT(!arm_fault_point(wrong));
  }
  EXPECT(arm_fault_point("append@3:exit7") && fault_points_armed.load());
  for (int pass = 0; pass < 2; ++pass) fault_point("append");
  fault_point("count");
  const pid_t child = fork();
  if (child == 0) {
    fault_point("append");
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  EXPECT(arm_fault_point("") && !fault_points_armed.load());
}

TEST_MAIN
