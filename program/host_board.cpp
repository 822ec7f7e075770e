// The messages that a run's launchers exchange through its store.

#include "host_board.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sstream>
#include <utility>

namespace redco {

namespace {

std::string numbered(const char* name, int64_t number) {
  return std::string(name) + "/" + std::to_string(number);
}

std::string numbered(const char* name, int64_t attempt, int64_t host) {
  return numbered(numbered(name, attempt).c_str(), host);
}

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

HostBoard::HostBoard(std::unique_ptr<RunStore> store, int64_t n_hosts)
    : store_(std::move(store)), hosts_(store_->part("hosts", 0)), n_hosts_(n_hosts) {}

void HostBoard::set(const std::string& key, const std::string& text) {
  hosts_->c10d()->set(key, bytes(text));
}

std::optional<std::string> HostBoard::find(const std::string& key) {
  if (!hosts_->c10d()->check({key})) return std::nullopt;
  return hosts_->c10d()->get_to_str(key);
}

std::string HostBoard::claim(int64_t host, const std::string& launcher) {
  auto now = hosts_->c10d()->compareSet(numbered("launcher", host), {}, bytes(launcher));
  return {now.begin(), now.end()};
}
void HostBoard::take_over(int64_t host, const std::string& launcher) {
  set(numbered("launcher", host), launcher);
}

void HostBoard::set_sign(int64_t host, const std::string& sign) {
  set(numbered("sign", host), sign);
}
std::string HostBoard::sign(int64_t host) { return find(numbered("sign", host)).value_or(""); }

void HostBoard::open(int64_t attempt) { set("attempt", std::to_string(attempt)); }

std::optional<int64_t> HostBoard::attempt() {
  auto text = find("attempt");
  return text ? std::optional<int64_t>(std::stoll(*text)) : std::nullopt;
}

void HostBoard::join(int64_t attempt, const Member& member) {
  set(numbered("joined", attempt, member.host), std::to_string(member.n_workers));
}

std::vector<HostBoard::Member> HostBoard::joined(int64_t attempt) {
  std::vector<Member> members;
  for (int64_t host = 0; host < n_hosts_; ++host)
    if (auto text = find(numbered("joined", attempt, host)))
      members.push_back({host, std::stoll(*text)});
  return members;
}

void HostBoard::set_crew(int64_t attempt, const Crew& crew) {
  std::ostringstream text;
  text << crew.run;
  for (const Member& each : crew.members) text << ' ' << each.host << ' ' << each.n_workers;
  set(numbered("crew", attempt), text.str());
}

std::optional<HostBoard::Crew> HostBoard::crew(int64_t attempt) {
  auto text = find(numbered("crew", attempt));
  if (!text) return std::nullopt;
  Crew crew;
  std::istringstream words(*text);
  words >> crew.run;
  for (Member each; words >> each.host >> each.n_workers;) crew.members.push_back(each);
  return crew;
}

std::unique_ptr<RunStore> HostBoard::part(int64_t attempt, const Crew& crew) {
  return store_->part(crew.run, attempt);
}

void HostBoard::set_done(int64_t attempt, int64_t host) {
  set(numbered("done", attempt, host), "1");
}
bool HostBoard::is_done(int64_t attempt, int64_t host) {
  return find(numbered("done", attempt, host)).has_value();
}

void HostBoard::set_end(const End& end) {
  hosts_->c10d()->compareSet("end", {}, bytes(std::to_string(end.code) + " " + end.text));
}

std::optional<HostBoard::End> HostBoard::end() {
  auto text = find("end");
  if (!text) return std::nullopt;
  size_t space = text->find(' ');
  return End{std::stoi(text->substr(0, space)), text->substr(space + 1)};
}

void HostBoard::set_left(int64_t host) { set(numbered("left", host), "1"); }
bool HostBoard::has_left(int64_t host) { return find(numbered("left", host)).has_value(); }

}  // namespace redco
