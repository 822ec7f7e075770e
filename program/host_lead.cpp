// The decisions of host 0's launcher for all hosts.

#include "host_lead.h"

#include <algorithm>
#include <random>
#include <sstream>
#include <utility>

namespace redco {

namespace {

// A host without a sign of life for this long counts as gone; workers have the same limit.
constexpr std::chrono::seconds host_patience(5);

std::string random_name() {
  std::ostringstream text;
  std::random_device device;
  text << std::hex << device() << device();
  return text.str();
}

}  // namespace

HostLead::HostLead(HostBoard& board, const Restarts& restarts)
    : board_(board), restarts_(restarts), signs_(size_t(board.n_hosts())) {
  open(0);
}

void HostLead::open(int64_t attempt) {
  attempt_ = attempt;
  opened_ = Clock::now();
  crew_ = {};
  waiting_ = std::make_unique<Waiting>("the launchers of the hosts");
  board_.open(attempt);
}

void HostLead::round() {
  if (board_.end()) return;
  listen();
  crew_.members.empty() ? meet() : watch();
}

void HostLead::listen() {
  for (int64_t host = 0; host < board_.n_hosts(); ++host) {
    Sign& sign = signs_[size_t(host)];
    std::string now = board_.sign(host);
    if (now != sign.text) sign = {now, Clock::now()};
  }
}

bool HostLead::is_silent(int64_t host) const {
  const Sign& sign = signs_[size_t(host)];
  return sign.text.empty() || Clock::now() - sign.changed > host_patience;
}

void HostLead::meet() {
  auto members = board_.joined(attempt_);
  std::erase_if(members, [this](const auto& each) { return is_silent(each.host); });
  auto n = int64_t(members.size()), all = board_.n_hosts();
  auto limit = attempt_ == 0 ? restarts_.first_meeting : restarts_.next_meeting;
  bool is_late = Clock::now() - opened_ > limit;
  int64_t enough = is_late && restarts_.min_hosts > 0 ? restarts_.min_hosts : all;
  std::ostringstream missing;
  for (int64_t host = 0; host < all; ++host)
    if (std::ranges::find(members, host, &HostBoard::Member::host) == members.end())
      missing << ' ' << host;
  bool is_here =
      n > 0 && members.front().host == 0;  // otherwise its last workers may still be ending
  if (is_here && n >= enough) {
    crew_ = {random_name(), members};
    part_ = board_.part(attempt_, crew_);
    board_.set_crew(attempt_, crew_);
    waiting_.reset();
  } else if (is_late) {
    waiting_.reset();
    std::ostringstream text;
    text << n << " of " << all << " hosts joined within " << limit.count() << " s, but " << enough
         << (enough == 1 ? " is" : " are") << " needed; missing:" << missing.str();
    board_.set_end({1, text.str()});
  } else {
    waiting_->change("the launchers of these of " + std::to_string(all) +
                     " hosts:" + missing.str());
  }
}

void HostLead::watch() {
  bool all_done = true;
  int64_t first_rank = 0;
  for (const auto& [host, n_workers] : crew_.members) {
    bool is_done = board_.is_done(attempt_, host);
    all_done = all_done && is_done;
    if (!is_done && is_silent(host)) {
      std::ostringstream text;
      text << "no sign of life of host " << host << " for " << host_patience.count()
           << " s: it cannot be reached, or its launcher has ended or was stopped";
      part_->note_failure({first_rank, text.str()});
    }
    first_rank += n_workers;
  }
  if (all_done)
    board_.set_end({});
  else if (!part_->failure())
    return;
  else if (attempt_ < restarts_.max)
    open(attempt_ + 1);
  else
    board_.set_end({1, ""});
}

bool HostLead::all_left() {
  listen();
  for (int64_t host = 1; host < board_.n_hosts(); ++host)
    if (!is_silent(host) && !board_.has_left(host)) return false;
  return true;
}

}  // namespace redco
