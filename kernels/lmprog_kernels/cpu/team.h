// The threads of one step. OpenMP's pool starts them (it is torch's own pool when torch was loaded first, so the two do
// not compete for cores); within a step they meet at a spinning barrier, which costs a fraction of an OpenMP one.
#pragma once

#include <immintrin.h>
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace lmk {

class Barrier {
   public:
    void wait(int threads) {
        if (threads == 1) return;
        const int generation = generation_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_release);
            return;
        }
        int spins = 0;
        while (generation_.load(std::memory_order_acquire) == generation) {
            _mm_pause();
            if (++spins % kSpins == 0) sched_yield();  // the thread waited for may need this very core
        }
    }

   private:
    static constexpr int kSpins = 4000;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> generation_{0};
};

// A contiguous share of `count` things.
struct Share {
    int begin, end;
    static Share of(int count, int thread, int threads) {
        return {static_cast<int>(static_cast<int64_t>(count) * thread / threads),
                static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / threads)};
    }
};

// One thread's view of its team.
struct Member {
    int thread, threads;
    Barrier* barrier;
    void wait() const { barrier->wait(threads); }
};

// Runs work(member) on every thread of a team of at most `threads`.
template <class Work>
void run_team(int threads, const Work& work) {
    Barrier barrier;
#pragma omp parallel num_threads(threads)
    work(Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

}  // namespace lmk
