// SPDX-License-Identifier: Apache-2.0
// Every interleaving of sleepers and ringers of two processes, with the engine's own FallAsleep, Ring and HandOver.
//
// What there is to do is a log with a cursor per process. Each process has an engine's thread, which drives where it
// gets the token and then falls asleep, and callers, which follow a script. A step is one shared-memory operation. No
// sleep has a time limit here, so a lost wake-up is a state in which nobody can move and a log is not read to its end.
// Checked: there is none.
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "check.h"
#include "wakeup/bells.h"

using namespace hvd;

namespace {

class PlainWord {
 public:
  explicit PlainWord(uint32_t& word) : word_(&word) {}
  uint32_t load() const { return *word_; }
  void store(uint32_t value) { *word_ = value; }
  void fetch_add(uint32_t delta) { *word_ += delta; }
  bool compare_exchange(uint32_t expected, uint32_t desired) {
    if (*word_ != expected) return false;
    *word_ = desired;
    return true;
  }

 private:
  uint32_t* word_;
};

// Scripts: S appends a record, rings the other process and waits until it has read all records of the script's round,
// by driving or, where another thread drives, after it has rung that one;
// A appends a record, rings both processes and waits for nothing; V drives for a moment because the log is full.
struct Script {
  int process;
  std::string steps;
};

enum class Place : uint8_t {
  kStart,
  kRingOthers,
  kRingOwn,
  kTake,
  kHide,
  kDrive,
  kDrop,
  kFall,
  kLeave,
  kEnd,
};

struct Thread {
  int process;
  bool engine;
  size_t script_step = 0;
  Place place = Place::kTake;
  int goal = 0;
  bool rang_own = false;
  Ring ring;
  FallAsleep fall{Sleeper::kEngine};
  HandOver hand_over;
};

struct Process {
  uint32_t sleeping = 0, bells[2] = {0, 0};
  bool token = false;
  int cursor = 0;

  Doorbell<PlainWord> door() { return {PlainWord(sleeping), {PlainWord(bells[0]), PlainWord(bells[1])}}; }
};

struct World {
  Process processes[2];
  int log = 0;
  std::vector<Thread> threads;

  // What no step will look at any more is left out: a bell's number matters only against what its sleeper has seen.
  std::string key() const {
    std::string text;
    const auto put = [&](auto value) { text += static_cast<char>(value); };
    for (const Process& process : processes) put(process.sleeping), put(process.token), put(process.cursor);
    put(log);
    for (const auto& t : threads) {
      using State = FallAsleep::State;
      const bool falls = t.place == Place::kFall, rings = t.place == Place::kRingOthers || t.place == Place::kRingOwn;
      put(t.script_step), put(t.place), put(t.rang_own);
      const bool ring_matters = rings || (t.place == Place::kTake && !t.engine);
      put(ring_matters ? static_cast<int>(t.ring.state()) * 4 + static_cast<int>(t.ring.who()) : 0);
      put(t.place == Place::kLeave ? static_cast<int>(t.hand_over.state()) : 0);
      if (!falls) continue;
      const State state = t.fall.state();
      const uint32_t bell = processes[t.process].bells[t.engine ? 0 : 1];
      const bool has_read = state != State::kReadBell;
      put(state), put(has_read && bell != t.fall.seen());
    }
    return text;
  }
};

class Checker {
 public:
  // `second_caller_is_silent`: a bug of this model's own callers, which otherwise do as wakeup/wakeup.cc does.
  explicit Checker(std::vector<Script> scripts, bool second_caller_is_silent = false)
      : scripts_(std::move(scripts)), second_caller_is_silent_(second_caller_is_silent) {}

  // Empty where no interleaving loses a wake-up.
  std::string run() {
    World first;
    for (int p = 0; p < 2; ++p) first.threads.push_back({p, true});
    for (const Script& script : scripts_) {
      first.threads.push_back({script.process, false});
      first.threads.back().place = Place::kStart;
    }
    push(std::move(first));
    while (!stack_.empty() && problem_.empty()) {
      const World world = std::move(stack_.back());
      stack_.pop_back();
      bool moved = false;
      for (size_t t = 0; t < world.threads.size(); ++t) {
        World next = world;
        if (!step(next, t)) continue;
        moved = true;
        push(std::move(next));
      }
      if (!moved) judge(world);
    }
    return problem_;
  }
  size_t states() const { return seen_.size(); }

 private:
  void push(World world) {
    if (seen_.insert(std::hash<std::string>()(world.key())).second) stack_.push_back(std::move(world));
  }

  void judge(const World& world) {
    for (const auto& thread : world.threads) {
      if (!thread.engine && thread.place != Place::kEnd) problem_ = "a caller waits for ever";
    }
    for (const Process& process : world.processes) {
      if (process.cursor < world.log) problem_ = "a process sleeps on a log it has not read";
    }
  }

  // How many records there are once all S and A of all scripts have come as far as this step.
  int records_until(size_t script_step) const {
    int count = 0;
    for (const Script& script : scripts_) {
      for (size_t i = 0; i <= script_step && i < script.steps.size(); ++i) count += script.steps[i] != 'V';
    }
    return count;
  }

  // False where the thread cannot move.
  bool step(World& world, size_t index) {
    Thread& thread = world.threads[index];
    Process& process = world.processes[thread.process];
    const char kind = thread.engine ? 'E' : thread.place == Place::kEnd ? ' ' : kind_of(index, thread);
    switch (thread.place) {
      case Place::kStart:
        thread.ring = {};
        if (kind == 'V') {
          thread.place = Place::kTake;
        } else {
          ++world.log;
          thread.goal = kind == 'S' ? records_until(thread.script_step) : 0;
          thread.place = Place::kRingOthers;
        }
        return true;
      case Place::kRingOthers:
        if (ring(world, thread, 1 - thread.process)) {
          thread.ring = {};
          thread.rang_own = false;
          thread.place = kind == 'S' ? Place::kTake : Place::kRingOwn;
        }
        return true;
      case Place::kRingOwn:
        if (ring(world, thread, thread.process)) next_in_script(index, thread);
        return true;
      case Place::kTake:
        return take(world, thread, process, kind);
      case Place::kHide:
        process.sleeping = 0;
        thread.place = Place::kDrive;
        return true;
      case Place::kDrive:
        if (process.cursor < world.log) {
          ++process.cursor;
        } else {
          thread.place = kind != 'S' || process.cursor >= thread.goal ? Place::kDrop : Place::kFall;
          thread.fall = FallAsleep(thread.engine ? Sleeper::kEngine : Sleeper::kCaller);
        }
        return true;
      case Place::kDrop:
        process.token = false;
        thread.hand_over = {};
        thread.place = thread.engine ? Place::kFall : waits_on(thread, process, kind) ? Place::kTake : Place::kLeave;
        return true;
      case Place::kFall:
        return fall(world, thread, process);
      case Place::kLeave: {
        Doorbell<PlainWord> door = process.door();
        thread.hand_over.step(door, [&] { return process.cursor < world.log; });
        if (thread.hand_over.state() == HandOver::State::kDone) next_in_script(index, thread);
        return true;
      }
      case Place::kEnd:
        return false;
    }
    return false;
  }

  char kind_of(size_t index, const Thread& thread) const { return scripts_[index - 2].steps[thread.script_step]; }
  static bool waits_on(const Thread& thread, const Process& process, char kind) {
    return kind == 'S' && process.cursor < thread.goal;
  }

  void next_in_script(size_t index, Thread& thread) {
    ++thread.script_step;
    thread.place = thread.script_step < scripts_[index - 2].steps.size() ? Place::kStart : Place::kEnd;
  }

  bool ring(World& world, Thread& thread, int process) {
    Doorbell<PlainWord> door = world.processes[process].door();
    thread.ring.step(door);
    return thread.ring.state() == Ring::State::kDone;
  }

  bool take(World& world, Thread& thread, Process& process, char kind) {
    if (kind == 'S' && process.cursor >= thread.goal) {
      thread.hand_over = {};
      thread.place = Place::kLeave;
      return true;
    }
    if (process.token) {
      if (kind == 'S' && !thread.rang_own && !second_caller_is_silent_) {
        if (ring(world, thread, thread.process)) thread.rang_own = true;
        return true;
      }
      if (!thread.engine) return false;  // until the token is free: it looks again every 2 ms
      thread.fall = FallAsleep(Sleeper::kEngine);
      thread.place = Place::kFall;
      return true;
    }
    process.token = true;
    thread.place = kind == 'S' ? Place::kHide : Place::kDrive;
    return true;
  }

  bool fall(World& world, Thread& thread, Process& process) {
    Doorbell<PlainWord> door = process.door();
    using State = FallAsleep::State;
    const Sleeper who = thread.engine ? Sleeper::kEngine : Sleeper::kCaller;
    if (thread.fall.state() == State::kSleep && door.bell(who).load() == thread.fall.seen()) return false;
    thread.fall.step(door, [&] { return (!thread.engine || !process.token) && process.cursor < world.log; });
    if (thread.fall.state() == State::kAwake) thread.place = thread.engine ? Place::kTake : Place::kDrop;
    return true;
  }

  std::vector<Script> scripts_;
  const bool second_caller_is_silent_;
  std::vector<World> stack_;
  std::unordered_set<size_t> seen_;  // of 64 bits
  std::string problem_;
};

using Programs = std::vector<std::vector<Script>>;

const Programs kSmall = {
    {{0, "A"}, {1, "A"}}, {{0, "S"}, {1, "AA"}}, {{0, "A"}, {0, "V"}, {1, "A"}}, {{0, "S"}, {0, "S"}, {1, "A"}}};

Programs all_programs() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {kSmall[0], kSmall[1], kSmall[2]};  // the checker has one thread: a sanitizer finds nothing in the others
#else
  Programs all = kSmall;
  all.push_back({{0, "S"}, {1, "S"}});
  all.push_back({{0, "SA"}, {1, "SA"}});
  all.push_back({{0, "AS"}, {1, "AS"}});
  all.push_back({{0, "VA"}, {1, "AV"}});
  all.push_back({{0, "VS"}, {1, "AVA"}});
  if (!thorough()) return all;
  all.push_back({{0, "SS"}, {1, "SS"}});
  all.push_back({{0, "S"}, {0, "A"}, {1, "S"}});
  all.push_back({{0, "S"}, {0, "V"}, {1, "S"}});
  return all;
#endif
}

std::string check_all(const Programs& programs, size_t* states, bool second_caller_is_silent = false) {
  for (const auto& scripts : programs) {
    Checker checker(scripts, second_caller_is_silent);
    const std::string problem = checker.run();
    *states += checker.states();
    if (problem.empty()) continue;
    std::string text = problem + " with scripts";
    for (const Script& script : scripts) text += " " + std::to_string(script.process) + ":" + script.steps;
    return text;
  }
  return "";
}

}  // namespace

TEST(no_interleaving_of_two_processes_loses_a_wake_up) {
  size_t states = 0;
  const std::string problem = check_all(all_programs(), &states);
  std::printf("       %zu states%s%s\n", states, problem.empty() ? "" : ": ", problem.c_str());
  EXPECT(problem.empty());
  EXPECT(states > 1000);
}

// The bugs of the doorbell itself are rows of tools/mutations/native.py.
TEST(a_second_caller_that_rings_nobody_is_found) {
  size_t states = 0;
  const std::string problem = check_all(kSmall, &states, true);
  std::printf("       %s\n", problem.empty() ? "not found" : problem.c_str());
  EXPECT(!problem.empty());
}

TEST_MAIN
