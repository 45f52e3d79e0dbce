/*
 * turns.h - names for the collectives of a process group, which come without: numbers in turn.
 *
 * libdp keeps what it knows of a tensor under its name: the magnitude of its last sum, which scales
 * DP_WIRE=fp16. So an operation of a training step should have
 * the number that it had in the step before. But a rank must not look at an operation to name it:
 * ranks that disagree about the nth operation find out because both give it the same name. So the
 * number follows from the operations before it.
 *
 *   step               a b b c | a b b c | a b b c ...
 *   numbers            0 1 2 3   4 5 6 7   4 5 6 7     once the operations are known to repeat
 *
 * Until then, and where nothing repeats, 256 numbers take turns. Once the newest operations equal
 * those one period before, as many numbers take turns as the period has operations, or a multiple
 * of it that keeps enough of them in flight. A signature holds nothing in which ranks may differ.
 *
 * Guarded by its own mutex.
 */
#ifndef DP_TORCH_TURNS_H
#define DP_TORCH_TURNS_H

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace dp_torch
{

constexpr uint64_t power(uint64_t base, uint64_t exponent)
{
    return exponent == 0 ? 1 : base * power(base, exponent - 1);
}

class Turns
{
  public:
    /* The number of the next operation; and whether the last one of that number was the same
     * operation of an earlier period. bytes: of its data, 0 where ranks may differ. count: set to
     * how many operations there were before. */
    std::pair<uint64_t, bool> next(uint64_t signature, uint64_t bytes, uint64_t *count)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (past_.empty()) past_.resize(kPast);
        const uint64_t at = *count = count_++;
        if (at == 0) thread_ = std::this_thread::get_id();
        is_shared_ = is_shared_ || thread_ != std::this_thread::get_id();
        const uint64_t number = number_of(at);
        digest_ = digest_ * kFactor + signature;
        if (at >= kProof) digest_ -= kFactorProof * past(at - kProof).signature;
        past_[at % kPast] = {signature, bytes, digest_};
        const bool is_same =
            is_periodic_ && at >= first_ + turns_ && past(at - turns_).signature == signature;
        same_ = is_same ? std::min(same_ + 1, turns_) : 0;
        if (same_ == turns_) known_ = at;
        const bool is_known = is_same && same_ == turns_;
        if (is_same) {
            period_ = 0;
            return {number, is_known};
        }
        if (is_periodic_ && at - known_ > kPatience * turns_ + kPause) {
            is_periodic_ = false;
            turns_ = kTurns;
            begin_ = at + 1;
        }
        find_period(at);
        return {number, is_known};
    }

    /* The operation after `count` others failed. Where ranks disagreed about it, their pasts
     * differ up to there, so what comes behind must not depend on it. */
    void forget(uint64_t count)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        first_ = std::max(first_, count + 1);
        same_ = std::min(same_, count_ - count - 1);
        period_ = 0;
    }

    /* Whether more than one thread has submitted: then ranks may differ in the order. */
    bool is_shared()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return is_shared_;
    }

  private:
    struct Past {
        uint64_t signature, bytes;
        uint64_t digest; /* of the last kProof signatures */
    };

    static constexpr uint64_t kTurns = 256;   /* numbers where nothing repeats */
    static constexpr uint64_t kProof = 16;    /* operations that must repeat at least */
    static constexpr uint64_t kLongest = 512; /* period */
    static constexpr uint64_t kPast = 2048;   /* operations remembered: twice turns and period */
    static constexpr uint64_t kLeast = 8;     /* numbers, of operations that hold kBytes together */
    static constexpr uint64_t kLeastSmall = 64; /* of smaller ones */
    static constexpr uint64_t kBytes = 1 << 20;
    static constexpr uint64_t kPatience = 4, kPause = 64; /* until a period is given up */
    static constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;
    static constexpr uint64_t kFactorProof = power(kFactor, kProof);

    const Past &past(uint64_t at) const
    {
        return past_[at % kPast];
    }

    uint64_t number_of(uint64_t at) const
    {
        if (!is_periodic_) return at % kTurns;
        const uint64_t turn = (at - begin_) % turns_;
        return turns_ <= kTurns ? (shift_ + turn) % kTurns : turn;
    }

    /* Takes turns by the distance of the last operation that had the same kProof - 1 before it, if
     * all since then and a period before were alike. */
    void find_period(uint64_t at)
    {
        const uint64_t longest = std::min(kLongest, at - std::min(at, first_ + kProof));
        uint64_t period = 1;
        while (period <= longest && past(at - period).digest != past(at).digest)
            period++;
        if (period > longest) {
            period_ = 0;
            return;
        }
        run_ = period == period_ ? run_ + 1 : 0;
        period_ = period;
        const uint64_t turns = turns_for(at, period);
        const uint64_t wanted = std::max({period, turns - period, kProof});
        while (run_ < wanted && at - run_ >= first_ + period &&
               past(at - run_).signature == past(at - run_ - period).signature)
            run_++;
        if (run_ < wanted || (is_periodic_ && turns == turns_)) return;
        /* The names of the last `turns` operations go on, where each had one of its own. */
        const bool goes_on = !is_periodic_ && turns <= kTurns && at + 1 - turns >= begin_;
        begin_ = at + 1;
        shift_ = goes_on ? (begin_ + kTurns - turns) % kTurns : 0;
        same_ = goes_on ? turns : 0;
        known_ = at;
        turns_ = turns;
        is_periodic_ = true;
        period_ = 0;
    }

    /* How many numbers, a multiple of the period: a program that does not wait stops when all are
     * in flight, so they are few only where a few hold much. */
    uint64_t turns_for(uint64_t at, uint64_t period) const
    {
        uint64_t bytes = 0, turns = period;
        for (uint64_t i = 0; i < period; i++)
            bytes += past(at - i).bytes;
        while (turns < kLeast || (turns < kLeastSmall && bytes * (turns / period) < kBytes))
            turns += period;
        return turns;
    }

    std::mutex mutex_;
    /* guarded by mutex_ */
    std::vector<Past> past_;
    uint64_t count_ = 0;     /* operations */
    std::thread::id thread_; /* of the first */
    bool is_shared_ = false;
    uint64_t digest_ = 0; /* of the last kProof signatures */
    uint64_t first_ = 0;  /* operations before it count for nothing */
    uint64_t turns_ = kTurns;
    bool is_periodic_ = false;       /* turns_ is a multiple of a period */
    uint64_t begin_ = 0, shift_ = 0; /* the first operation since then, and its number */
    uint64_t same_ = 0;  /* operations in a row that equal those turns_ before, at most turns_ */
    uint64_t known_ = 0; /* the last operation at which it was turns_ */
    uint64_t period_ = 0, run_ = 0; /* one that may be, and how many operations speak for it */
};

} // namespace dp_torch

#endif
