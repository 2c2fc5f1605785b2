// SPDX-License-Identifier: Apache-2.0
// The native tests' harness: TEST(name) { EXPECT(...); } and main() that runs all, or those whose name contains
// argv[1].
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#if defined(HVD_EMULATED)
constexpr bool kEmulated = true;  // an emulated processor: some calls of the system are missing
#else
constexpr bool kEmulated = false;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;  // everything takes many times as long
#else
constexpr bool kSanitized = kEmulated;
#endif
constexpr unsigned kPatience = kSanitized ? 10 : 1;  // what is no promise of the engine may take as many times as long

// THOROUGH=1, as in `make check-all`: what takes long as well.
inline bool thorough() {
  const char* const value = std::getenv("THOROUGH");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

// What the engine promises, as `make check-all` checks it. A busy machine comes late to everything.
inline int64_t promised_ns(int64_t ms) { return (thorough() ? ms : ms + 20000) * 1'000'000 * kPatience; }

namespace check {

struct Case {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline std::atomic<int>& failures() {  // ranks may be threads
  static std::atomic<int> count{0};
  return count;
}

struct Registration {
  Registration(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

inline int run(int argc, char** argv) {
  int ran = 0;
  for (const Case& test : cases()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = failures();
    test.body();
    ++ran;
    std::printf("%s %s\n", failures() == before ? "ok    " : "FAILED", test.name);
    std::fflush(stdout);
  }
  if (ran == 0) std::printf("no test matches\n");
  return failures() == 0 && ran > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                                      \
  static void test_##name();                                            \
  static const check::Registration register_##name(#name, test_##name); \
  static void test_##name()

#define EXPECT(condition)                                                  \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ++check::failures();                                                 \
      std::printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (0)

// In the one file of a test program that holds main().
#define TEST_MAIN \
  int main(int argc, char** argv) { return check::run(argc, argv); }
