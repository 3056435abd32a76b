// The C interface of sampling: rows of logits, shared out among the threads.

#include "sampling.h"

#include <atomic>
#include <memory>

#include "abi.h"
#include "measure.h"
#include "team.h"

#define LMK_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace lmk;

RowSampler& sampler_of_thread() {
    thread_local RowSampler sampler;
    return sampler;
}

// Rows are taken one by one. When other processes hold the cores, the caller does not wait for threads without one: with
// eight of them on two cores, 16 rows of 0.1 ms took 19 ms.
template <class Work>
int for_each_row(int rows, int threads, const Work& work) {
    thread_local ThreadLimit limit;
    threads = limit.apply(std::max(1, std::min(rows, threads)));
    std::atomic<int> taken{0}, status{0};
    const auto start = std::chrono::steady_clock::now();
    const double slept = run_team(threads, [&](const Member& member) {
        try {
            for (int i = taken++; i < rows; i = taken++) work(sampler_of_thread(), i);
        } catch (const std::bad_alloc&) {
            status = 1;
        }
        member.wait();
    });
    limit.observe(threads, seconds_since(start), slept);
    return status;
}

}  // namespace

// logits: [count, vocab] float32.
LMK_EXPORT int lmk_sample(const float* logits, LmkSampleRow* const* rows, int32_t count, int32_t vocab, int32_t threads) {
    return for_each_row(count, threads, [&](RowSampler& sampler, int i) {
        sampler.choose(logits + static_cast<size_t>(i) * vocab, vocab, *rows[i]);
    });
}

LMK_EXPORT int lmk_score_tokens(LmkScoreRow* rows, int32_t count, int32_t vocab, int32_t threads) {
    return for_each_row(count, threads, [&](RowSampler& sampler, int i) { sampler.score(rows[i], vocab); });
}
