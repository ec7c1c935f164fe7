#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

namespace sge {
namespace {

constexpr int kChunkBits = 20;
constexpr uint64_t kChunkMask = (1u << kChunkBits) - 1;
// About 20 to 60 microseconds of `pause`, by processor.
constexpr int kSpins = 1500;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

uint64_t pack(uint64_t job, uint64_t chunks) { return job << (2 * kChunkBits) | chunks << kChunkBits; }

}  // namespace

Team::Team(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
}

Team::~Team() {
  stop_.store(true);
  bell_.fetch_add(1);
  futex_wake(bell_, static_cast<int>(helpers_.size()));
  for (auto& helper : helpers_) helper.join();
}

bool Team::take(uint64_t& state, int& chunk) {
  while ((state & kChunkMask) < (state >> kChunkBits & kChunkMask)) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      chunk = static_cast<int>(state & kChunkMask);
      return true;
    }
  }
  return false;
}

void Team::finish_one() {
  const uint32_t total = static_cast<uint32_t>(state_.load(std::memory_order_relaxed) >> kChunkBits & kChunkMask);
  if (done_.fetch_add(1) + 1 == total && caller_sleeps_.load() != 0) futex_wake(done_, 1);
}

void Team::run_shared(int chunks, Call call, const void* work) {
  // A second caller works alone; so does one that cuts finer than the counter holds, which none does.
  std::unique_lock<std::mutex> lock(one_caller_, std::try_to_lock);
  if (!lock.owns_lock() || static_cast<uint64_t>(chunks) > kChunkMask) {
    for (int i = 0; i < chunks; ++i) call(work, i);
    return;
  }
  regions_.fetch_add(1, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  call_.store(call, std::memory_order_relaxed);
  work_.store(work, std::memory_order_relaxed);
  const uint64_t job = (state_.load(std::memory_order_relaxed) >> (2 * kChunkBits)) + 1;
  uint64_t state = pack(job, static_cast<uint64_t>(chunks));
  state_.store(state);
  bell_.fetch_add(1);
  if (sleeping_helpers_.load() != 0) futex_wake(bell_, static_cast<int>(helpers_.size()));

  int chunk;
  while (take(state, chunk)) {
    call(work, chunk);
    done_.fetch_add(1);
    state = state_.load(std::memory_order_acquire);
  }
  const uint32_t total = static_cast<uint32_t>(chunks);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (done_.load(std::memory_order_acquire) == total) return;
    relax();
  }
  caller_sleeps_.store(1);
  for (uint32_t seen = done_.load(); seen != total; seen = done_.load()) {
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    futex_wait(done_, seen);
  }
  caller_sleeps_.store(0);
}

void Team::help() {
  // As it was before there were helpers: one that starts late still hears of a job, and of the end.
  uint32_t heard = 0;
  for (;;) {
    uint64_t state = state_.load(std::memory_order_acquire);
    int chunk;
    while (take(state, chunk)) {
      // The job cannot end before this chunk is done, so its function stays what it is.
      call_.load(std::memory_order_relaxed)(work_.load(std::memory_order_relaxed), chunk);
      finish_one();
      state = state_.load(std::memory_order_acquire);
    }
    bool rung = false;
    for (int spin = 0; spin < kSpins && !rung; ++spin) {
      rung = bell_.load(std::memory_order_acquire) != heard;
      if (!rung) relax();
    }
    if (!rung) {
      sleeping_helpers_.fetch_add(1);
      while (bell_.load() == heard) {
        sleeps_.fetch_add(1, std::memory_order_relaxed);
        futex_wait(bell_, heard);
      }
      sleeping_helpers_.fetch_sub(1);
    }
    heard = bell_.load(std::memory_order_acquire);
    if (stop_.load()) return;
  }
}

namespace {

std::mutex team_mutex;
std::shared_ptr<Team> the_team;
int wanted_threads = 0;

int available() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// The child has the parent's memory and none of its threads: the object is left behind, never joined.
void in_child() {
  new std::shared_ptr<Team>(std::move(the_team));
  new (&team_mutex) std::mutex;
}

}  // namespace

std::shared_ptr<Team> team() {
  std::lock_guard<std::mutex> lock(team_mutex);
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
  if (!the_team) the_team = std::make_shared<Team>(wanted_threads > 0 ? wanted_threads : available());
  return the_team;
}

void set_threads(int threads) {
  std::lock_guard<std::mutex> lock(team_mutex);
  wanted_threads = threads;
  if (the_team && the_team->threads() != threads) the_team.reset();
}

}  // namespace sge
