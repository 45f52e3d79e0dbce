/*
 * any_source.h - receives from any rank, for libdp's have one sender.
 *
 *     sender 2                      the ranks' store              receiver 0
 *     dp_send() to 0, tag 7                                       recv from any, tag 7
 *     not taken yet?                any.0 = asks            <---- once
 *     look:  any.0 is there  ---->  any.0.1 = "2 7 0"       ----> look: rank 2, tag 7, message 0
 *                                                                 dp_recv() from 2
 *
 * Only a send that nobody has taken for a while looks whether its receiver asks, so programs that
 * name their senders pay nothing. From then on the sender announces each message to that receiver.
 * One thread of the sender does so, which begins with the first send of a group and ends with the
 * world. The receiver looks in the threads that wait; messages go to receives in the order in which
 * both were made, tag by tag.
 */
#ifndef DP_TORCH_ANY_SOURCE_H
#define DP_TORCH_ANY_SOURCE_H

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sstream>

#include "group.h"

namespace dp_torch
{

class AnySource : public std::enable_shared_from_this<AnySource>
{
  public:
    AnySource(std::shared_ptr<World> world, std::shared_ptr<Group> group,
              c10::intrusive_ptr<c10d::Store> store, int rank)
        : world_(std::move(world)), group_(std::move(group)), store_(std::move(store)), rank_(rank),
          asks_(group_->size())
    {
    }

    ~AnySource()
    {
        stop();
    }

    /* ---- The sender ---- */

    /* Of each message, behind its submission. */
    void sent(std::shared_ptr<Operation> operation, int to, int tag, uint64_t number)
    {
        std::lock_guard<std::mutex> lock(sends_mutex_);
        if (is_stopped_) return;
        if (!thread_.joinable()) start();
        sends_.push_back({std::move(operation), to, tag, number});
        is_urgent_ = is_urgent_ || asks_[to];
        if (is_urgent_ || is_asleep_) changed_->notify_one();
    }

    void stop()
    {
        if (world_->is_forked()) { /* the thread is the parent's, and so may be the mutex */
            if (thread_.joinable()) thread_.detach();
            return;
        }
        {
            std::lock_guard<std::mutex> lock(sends_mutex_);
            is_stopped_ = true;
            changed_->notify_one();
        }
        WithoutGil released;
        if (thread_.joinable()) thread_.join();
        sends_.clear();
    }

    /* ---- The receiver ---- */

    std::shared_ptr<Operation> recv(const at::Tensor &tensor, int tag)
    {
        auto operation = std::make_shared<Operation>(world_);
        operation->has_begun = false;
        operation->search = [self = shared_from_this()] { self->match(); };
        std::lock_guard<std::mutex> lock(receives_mutex_);
        receives_.push_back({operation, tensor, tag});
        return operation;
    }

  private:
    struct Sent {
        std::shared_ptr<Operation> operation;
        int to, tag;
        uint64_t number; /* of the messages of this pair and tag */
    };
    struct Receive {
        std::weak_ptr<Operation> operation; /* gone: its Work was dropped */
        at::Tensor tensor;
        int tag;
    };
    struct Offer {
        int from, tag;
        uint64_t number;
    };

    static std::string key_of(int receiver)
    {
        return "any." + std::to_string(receiver);
    }

    /* sends_mutex_ is held. */
    void start()
    {
        std::weak_ptr<AnySource> weak = weak_from_this();
        world_->at_close([weak] {
            if (auto self = weak.lock()) self->stop();
        });
        thread_ = std::thread([this] { announce(); });
    }

    /* The thread. It looks every 10 ms at what is under way, seldomer where nothing changes, and
     * sleeps after a while without messages, so that few of them have to wake it. */
    void announce()
    {
        const Milliseconds often(10), seldom(200);
        Milliseconds pause = often;
        int idle = 0;
        std::unique_lock<std::mutex> lock(sends_mutex_);
        while (!is_stopped_) {
            size_t before = sends_.size();
            auto is_wanted = [this] { return is_stopped_ || is_urgent_; };
            idle = before == 0 ? idle + 1 : 0;
            if (idle > kIdleLooks) {
                is_asleep_ = true;
                changed_->wait(lock, [this] { return is_stopped_ || !sends_.empty(); });
                is_asleep_ = false;
            } else {
                changed_->wait_for(lock, pause, is_wanted);
            }
            if (is_stopped_) break;
            is_urgent_ = false;
            pause = sends_.size() != before ? often : std::min(2 * pause, seldom);
            std::vector<Sent> taken;
            taken.swap(sends_);
            lock.unlock();
            bool is_alive = look_at(taken);
            lock.lock();
            is_stopped_ = is_stopped_ || !is_alive;
            sends_.insert(sends_.begin(), taken.begin(), taken.end());
        }
    }

    /* Drops what is over and what it has announced. False: the store is gone. */
    bool look_at(std::vector<Sent> &sends)
    {
        auto is_done = [this](const Sent &one) {
            if (one.operation->wait(0)) return true;
            if (!does_ask(one.to)) return false;
            const std::string prefix = key_of(one.to) + ".";
            int64_t place = store_->add(prefix + "count", 1);
            store_->set(prefix + std::to_string(place), std::to_string(rank_) + " " +
                                                            std::to_string(one.tag) + " " +
                                                            std::to_string(one.number));
            return true;
        };
        try {
            looked_.assign(asks_.size(), false);
            sends.erase(std::remove_if(sends.begin(), sends.end(), is_done), sends.end());
        } catch (const std::exception &) { /* the sends themselves go on */
            return false;
        }
        return true;
    }

    /* Asks the store once for each receiver and look. */
    bool does_ask(int receiver)
    {
        if (asks_[receiver]) return true;
        if (looked_[receiver]) return false;
        looked_[receiver] = true;
        bool does = store_->check({key_of(receiver)});
        std::lock_guard<std::mutex> lock(sends_mutex_);
        asks_[receiver] = does;
        return does;
    }

    /* Reads what senders have announced, and submits the receives that it serves. On any thread
     * that waits for one of them. */
    void match()
    {
        std::lock_guard<std::mutex> lock(receives_mutex_);
        if (!has_asked_) store_->set(key_of(rank_), std::string("asks"));
        has_asked_ = true;
        for (;;) {
            const std::string key = key_of(rank_) + "." + std::to_string(offers_read_ + 1);
            if (!store_->check({key})) break;
            Offer offer{};
            std::istringstream(store_->get_to_str(key)) >> offer.from >> offer.tag >> offer.number;
            offers_read_++;
            offers_.push_back(offer);
            store_->deleteKey(key);
        }
        for (size_t i = 0; i < offers_.size();) {
            const Offer offer = offers_[i];
            bool is_taken = offer.number < group_->count_of_pair(offer.from, rank_, offer.tag);
            if (is_taken || serve(offer)) {
                offers_.erase(offers_.begin() + (std::ptrdiff_t)i);
            } else {
                i++;
            }
        }
    }

    /* Gives the first receive of the tag the next message of the sender. */
    bool serve(const Offer &offer)
    {
        for (auto at = receives_.begin(); at != receives_.end();) {
            auto operation = at->operation.lock();
            if (!operation || operation->is_over()) {
                at = receives_.erase(at);
                continue;
            }
            if (at->tag != offer.tag) {
                ++at;
                continue;
            }
            operation->source = offer.from;
            try {
                group_->recv_as(*operation, at->tensor, offer.from, offer.tag,
                                group_->next_of_pair(offer.from, rank_, offer.tag));
            } catch (const c10::Error &failure) {
                operation->refusal = failure.what_without_backtrace();
            }
            receives_.erase(at);
            operation->has_begun.store(true, std::memory_order_release);
            return true;
        }
        return false;
    }

    static constexpr int kIdleLooks = 100;

    std::shared_ptr<World> world_;
    std::shared_ptr<Group> group_;
    c10::intrusive_ptr<c10d::Store> store_; /* of the group's ranks */
    const int rank_;

    std::mutex sends_mutex_;
    Condition changed_;
    /* guarded by sends_mutex_ */
    std::vector<Sent> sends_;
    std::vector<char> asks_; /* by receiver; written by the thread */
    bool is_urgent_ = false, is_asleep_ = false, is_stopped_ = false;
    std::thread thread_;
    std::vector<char> looked_; /* the thread's own */

    std::mutex receives_mutex_;
    /* guarded by receives_mutex_ */
    std::deque<Receive> receives_;
    std::vector<Offer> offers_;
    uint64_t offers_read_ = 0;
    bool has_asked_ = false;
};

} // namespace dp_torch

#endif
