// The threads of one step. OpenMP's pool starts them (it is torch's own pool when torch was loaded first, so the two do
// not compete for cores); within a step they meet at a barrier of our own, which costs a fraction of an OpenMP one.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace lmk {

// Threads that wait long sleep: the thread they wait for may need their core. A step that shares two cores with one busy
// process took up to five times as long when waiting threads kept spinning.
class Barrier {
   public:
    void wait(int threads) {
        if (threads == 1) return;
        const int32_t generation = generation_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1);
            if (sleepers_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT32_MAX);
            return;
        }
        for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; spins++) {
            spins < kSpins ? _mm_pause() : sleep(generation);
        }
    }

    // Time that threads slept here, in seconds.
    double seconds_slept() const { return static_cast<double>(nanoseconds_slept_.load()) * 1e-9; }

   private:
    static constexpr int kSpins = 3000;  // some 30 to 60 microseconds

    void sleep(int32_t generation) {
        const auto start = std::chrono::steady_clock::now();
        sleepers_.fetch_add(1);
        futex(FUTEX_WAIT_PRIVATE, generation);  // returns at once if the generation has moved on
        sleepers_.fetch_sub(1);
        nanoseconds_slept_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    }
    void futex(int operation, int32_t value) {
        syscall(SYS_futex, reinterpret_cast<int32_t*>(&generation_), operation, value, nullptr, nullptr, 0);
    }

    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int32_t> generation_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<int64_t> nanoseconds_slept_{0};
};

// Takes threads away for a while when other processes hold their cores: a step that spends most of its time waiting for
// a thread without a core is faster without that thread. Results do not depend on the number of threads.
class ThreadLimit {
   public:
    int apply(int threads) const { return steps_left_ > 0 ? std::min(threads, limit_) : threads; }

    // `seconds_slept`: of all threads. Where one has no core, all others wait for it.
    void observe(int threads, double seconds, double seconds_slept) {
        if (steps_left_ > 0) steps_left_--;
        if (threads == 1 || seconds_slept < seconds * kWasted * (threads - 1)) return;
        limit_ = threads - 1;
        steps_left_ = kSteps;
    }

   private:
    static constexpr double kWasted = 0.5;
    static constexpr int kSteps = 16;  // until the threads are tried again
    int limit_ = 0, steps_left_ = 0;
};

// A contiguous share of things.
struct Share {
    int begin, end;
    int count() const { return end - begin; }
    static Share of(Share all, int thread, int threads) {
        const auto at = [&](int64_t part) { return all.begin + static_cast<int>(part * all.count() / threads); };
        return {at(thread), at(thread + 1)};
    }
    static Share of(int count, int thread, int threads) { return of({0, count}, thread, threads); }
};

// One thread's view of its team.
struct Member {
    int thread, threads;
    Barrier* barrier;
    void wait() const { barrier->wait(threads); }
};

// Runs work(member) on every thread of a team of at most `threads`. Returns the seconds that they slept in all.
template <class Work>
double run_team(int threads, const Work& work) {
    Barrier barrier;
#pragma omp parallel num_threads(threads)
    work(Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
    return barrier.seconds_slept();
}

}  // namespace lmk
