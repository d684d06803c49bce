#include "parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "../generic/internal.h"
#include "float_environment.h"

namespace og {
namespace {

std::atomic<int> chosen_threads{0};

int hardware_threads() {  // asked once: it reads files, at several microseconds a time
  static const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return count;
}

// To sleep and to be woken takes longer than many a job, so threads look out for a while first.
constexpr std::chrono::microseconds kPatience{200};

template <class Done>
void look_out(Done done) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

struct Job {
  const std::function<int(int64_t, int)> *body;
  int64_t tiles;
  int workers;
  std::atomic<int64_t> next{0};
  std::atomic<int> failure{0};

  void work(int worker) {
    for (int64_t tile; !failure && (tile = next++) < tiles;)
      if (int code = (*body)(tile, worker)) failure = code;
  }
};

class Pool {
 public:
  int run(Job *job) {
    std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
    if (!owner || job->workers <= 1) {
      job->work(0);
      return job->failure;
    }
    {
      std::lock_guard<std::mutex> guard(lock_);
      while (static_cast<int>(helpers_.size()) < job->workers - 1)
        helpers_.emplace_back(&Pool::help, this, static_cast<int>(helpers_.size()) + 1, round_.load());
      job_ = job;
      busy_ = static_cast<int>(helpers_.size());
      ++round_;
    }
    wake_.notify_all();
    job->work(0);
    look_out([this] { return busy_ == 0; });
    std::unique_lock<std::mutex> guard(lock_);
    done_.wait(guard, [this] { return busy_ == 0; });
    return job->failure;
  }

 private:
  void help(int worker, int64_t seen) {
    FloatEnvironment environment;
    for (;;) {
      Job *job;
      look_out([&] { return round_ != seen; });
      {
        std::unique_lock<std::mutex> guard(lock_);
        wake_.wait(guard, [&] { return round_ != seen; });
        seen = round_;
        job = job_;
      }
      if (worker < job->workers) job->work(worker);
      std::lock_guard<std::mutex> guard(lock_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex owner_, lock_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> helpers_;
  Job *job_ = nullptr;
  std::atomic<int> busy_{0};
  std::atomic<int64_t> round_{0};
};

Pool *pool = new Pool;  // never destroyed: its threads may outlive main

// A forked child has the memory but not the threads: it starts a pool of its own.
const int fork_handler = pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });

}  // namespace

int parallel_for(int64_t tiles, int threads, const std::function<int(int64_t, int)> &body) {
  (void)fork_handler;
  Job job{&body, tiles, static_cast<int>(std::min<int64_t>(threads, tiles))};
  return pool->run(&job);
}

}  // namespace og

extern "C" void og_set_threads(int threads) { og::chosen_threads = std::max(0, threads); }

extern "C" int og_threads(void) {
  int chosen = og::chosen_threads;
  return chosen > 0 ? chosen : og::hardware_threads();
}
