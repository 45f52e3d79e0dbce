/*
 * monitored.h - a barrier by the store of the ranks, after which rank 0 knows who was missing.
 *
 * It leaves no operation under way in libdp. Called on the program's threads.
 */
#ifndef DP_TORCH_MONITORED_H
#define DP_TORCH_MONITORED_H

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "world.h"

namespace dp_torch
{

/* True when the key is there in time. Asks again and again: a wait of the store's own would keep
 * others from it, and Ctrl-C from the program. */
inline bool await_key(c10d::Store &store, const std::string &key, Clock::time_point until)
{
    std::chrono::microseconds pause(100);
    const std::chrono::microseconds longest(5000);
    while (!store.check({key})) {
        if (Clock::now() >= until) return false;
        raise_signals();
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, longest);
    }
    return true;
}

class MonitoredBarrier
{
  public:
    MonitoredBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
        : store_(std::move(store)), rank_(rank), size_(size)
    {
    }

    /* wants_all: rank 0 names all that are missing, else the first one. */
    void pass(Milliseconds limit, bool wants_all)
    {
        WithoutGil released;
        const auto until = Clock::now() + limit;
        const std::string prefix = "dp.monitored." + std::to_string(++passes_) + "/";
        if (rank_ != 0) {
            store_->set(prefix + std::to_string(rank_), std::string("here"));
            pass_behind(prefix, until);
            return;
        }
        if (limit <= kNoTimeout) fail("Rank 0 timed out in monitoredBarrier after 0 ms");
        std::vector<int> missing = find_missing(prefix, until, wants_all);
        store_->set(prefix + "passed", std::string(missing.empty() ? "yes" : "no"));
        if (missing.empty()) return;
        std::string ranks;
        for (int rank : missing)
            ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
        fail((missing.size() > 1 ? "Ranks " : "Rank ") + ranks +
             " failed to pass monitoredBarrier in " + std::to_string(limit.count()) + " ms");
    }

  private:
    std::vector<int> find_missing(const std::string &prefix, Clock::time_point until,
                                  bool wants_all) const
    {
        std::vector<int> missing;
        for (int rank = 1; rank < size_; rank++) {
            if (await_key(*store_, prefix + std::to_string(rank), until)) continue;
            missing.push_back(rank);
            if (!wants_all) break;
        }
        return missing;
    }

    void pass_behind(const std::string &prefix, Clock::time_point until) const
    {
        if (await_key(*store_, prefix + "passed", until) &&
            store_->get_to_str(prefix + "passed") == "yes")
            return;
        fail("Rank " + std::to_string(rank_) +
             " successfully reached monitoredBarrier, but received errors while waiting for "
             "send/recv from rank 0. Please check rank 0 logs for faulty rank.");
    }

    c10::intrusive_ptr<c10d::Store> store_;
    const int rank_, size_;
    uint64_t passes_ = 0;
};

} // namespace dp_torch

#endif
