#include <redco/prompt.h>
#include <redco/script_engine.h>

#include <doctest/doctest.h>

#include <sys/time.h>
#include <csignal>
#include <string>
#include <vector>

namespace redco {
namespace {

Prompt::Answer answer(Prompt& prompt, const std::string& line) {
  Prompt::Fed fed = prompt.feed(line);
  REQUIRE(fed.status == Prompt::Status::chunk);
  return prompt.run(fed.chunk);
}

TEST_CASE("lines become chunks, chunks answers") {
  ScriptEngine engine;
  Prompt prompt(engine);
  CHECK(prompt.feed("x = {").status == Prompt::Status::more);
  Prompt::Fed fed = prompt.feed("1 }");
  CHECK(fed.status == Prompt::Status::chunk);
  CHECK(fed.chunk == "x = {\n1 }");
  CHECK(prompt.run(fed.chunk).text == "");
  CHECK(answer(prompt, "x").text == "{ 1 }");
  CHECK(prompt.feed("x = {").status == Prompt::Status::more);
  CHECK(prompt.forget() == "x = {");
  CHECK(prompt.forget() == "");
  CHECK(prompt.feed(":q").status == Prompt::Status::quit);
}

TEST_CASE("an answer has the error and the user's frames") {
  ScriptEngine engine;
  Prompt prompt(engine);
  answer(prompt, "function f() error 'mine' end");
  Prompt::Answer given = answer(prompt, "f()");
  CHECK(given.text == "");
  CHECK(given.message == "stdin:1: mine");
  CHECK(given.traceback == "\tstdin:1: in function 'f'\n\tstdin:1: in main chunk");
  CHECK(answer(prompt, "local gone = 1").hint.starts_with("gone is gone"));
}

TEST_CASE("values have colours and the width that was asked for") {
  ScriptEngine engine;
  Prompt prompt(engine, {.width = 20, .colors = true});
  CHECK(answer(prompt, "{ a = 'b' }").text == "{ a = \033[32m\"b\"\033[0m }");
  const std::string wide = "{ first = 1111, second = 2222 }";
  CHECK(answer(prompt, wide).text == "{\n  first = 1111,\n  second = 2222\n}");
  prompt.set_width(80);
  CHECK(answer(prompt, wide).text == wide);
}

TEST_CASE("names are completed") {
  ScriptEngine engine;
  Prompt prompt(engine);
  std::string line = "y = redco.optim.ada + 1";
  Prompt::Completion found = prompt.complete(line, 19);
  CHECK(found.start == 16);
  CHECK(found.candidates ==
        std::vector<std::string>{"adafactor", "adagrad", "adam", "adamw", "adamw8bit"});
  CHECK_FALSE(found.is_file);
  found = prompt.complete("torch.load 'we", 14);
  CHECK(found.is_file);
  CHECK(found.start == 12);
}

ScriptEngine* to_interrupt = nullptr;

TEST_CASE("an interrupt ends the chunk and not the next one") {
  ScriptEngine engine;
  Prompt prompt(engine);
  to_interrupt = &engine;
  std::signal(SIGALRM, [](int) { to_interrupt->interrupt(); });
  itimerval soon = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 50000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  CHECK(answer(prompt, "while true do end").message == "stdin:1: interrupted");
  CHECK(answer(prompt, "1").text == "1");
}

}  // namespace
}  // namespace redco
