// A persistent team of threads for short parallel regions on a machine that other processes use too.
//
// Work is cut into chunks that whoever is free takes next: a helper that the system has put off its core holds back the
// one chunk it is in, and no one else waits for it to "arrive". Waiting is a bounded spin (tens of microseconds, the
// distance between two regions of one forward pass), then a futex, so an idle server uses no processor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sge {

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls work(chunk) for every chunk in [0, chunks), and returns when all have returned. work must not throw.
  template <class Work>
  void run(int chunks, const Work& work) {
    if (chunks <= 1 || helpers_.empty()) {
      for (int i = 0; i < chunks; ++i) work(i);
      return;
    }
    run_shared(chunks, [](const void* w, int chunk) { (*static_cast<const Work*>(w))(chunk); }, &work);
  }

  // Regions that were shared, and how often a thread went to sleep in one: evidence for tests and for the metrics.
  uint64_t regions() const { return regions_.load(std::memory_order_relaxed); }
  uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }

 private:
  using Call = void (*)(const void*, int);

  void run_shared(int chunks, Call call, const void* work);
  void help();
  bool take(uint64_t& state, int& chunk);
  void finish_one();

  // Job number (24 bits), its number of chunks (20), the next free one (20): read and claimed as one word, so that a
  // helper that comes late can never take a chunk of a job whose function it has not read.
  std::atomic<uint64_t> state_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> work_{nullptr};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> bell_{0};  // rung at every job; helpers sleep on it
  std::atomic<uint32_t> sleeping_helpers_{0};
  std::atomic<uint64_t> sleeps_{0};
  std::atomic<bool> stop_{false};
  std::mutex one_caller_;
  std::atomic<uint64_t> regions_{0};
  std::vector<std::thread> helpers_;
};

// The team of this process, made at first use with `set_threads` threads (default: the processors it may run on), and
// made anew in a forked child, which inherits no threads.
std::shared_ptr<Team> team();
void set_threads(int threads);

}  // namespace sge
