// What of Jinja chat templates use; tests/peers compares it with jinja2.
#include <redco/error.h>
#include <redco/tokenizer.h>

#include <doctest/doctest.h>

using redco::Json;
using redco::Tokenizer;


namespace {

Json message(const char* role, const char* content) {
  return Json::Object{{"role", role}, {"content", content}};
}

std::string render(const std::string& chat_template, bool prompt = false) {
  redco::TokenizerParts parts;
  parts.tokens = {"</s>", "a"};
  parts.eos_id = 0;
  parts.chat_template = chat_template;
  return Tokenizer::from_parts("parts: ", parts)
      .apply_chat_template(Json::List{message("system", "S"), message("user", " hi ")}, prompt);
}

void check_error(const std::string& chat_template, std::initializer_list<const char*> parts) {
  try {
    render(chat_template);
  } catch (const redco::Error& error) {
    for (const char* part : parts)
      CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos,
                    std::string(error.what()), " has no ", std::string(part));
    return;
  }
  FAIL_CHECK("expected an error: ", chat_template.substr(0, 80));
}

std::string repeated(const std::string& text, int n) {
  std::string all;
  while (n-- > 0) all += text;
  return all;
}

}  // namespace

TEST_CASE("a conversation is written out") {
  const std::string chatml =
      "{% for m in messages %}\n"
      "    {{- '<' + m.role + '>' + m['content'] | trim + eos_token -}}\n"
      "{% endfor %}\n"
      "{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";
  CHECK(render(chatml) == "<system>S</s><user>hi</s>");
  CHECK(render(chatml, true) == "<system>S</s><user>hi</s><assistant>");
}

TEST_CASE("what is not understood is named with its line") {
  check_error("", {"chat_template"});
  check_error("a\n{{ messages | shuffle }}", {"line 2", "shuffle", "tojson"});
  check_error("{{ 1 is wonderful }}", {"wonderful", "defined"});
  check_error("\n\n{{ strftime_now('%d') }}", {"line 3", "strftime_now", "raise_exception"});
  check_error("{{ 'a'.center(3) }}", {"center", "strip"});
  check_error("{% macro f() %}{% endmacro %}", {"macro", "for, if"});
  check_error("{{ nothing.member }}", {"'nothing'", "not defined"});
  check_error("{{ raise_exception('one turn only') }}", {"one turn only"});
  check_error("{% for m in messages %}", {"endfor"});
  check_error("{{ 'a", {"does not end"});
  check_error("{{ 1 + }}", {"expected a value"});
  check_error("{{ (1, 2 }}", {"')'"});
  check_error("{% if %}{% endif %}", {"expected a value"});
  check_error("{{ 1 / 0 }}", {"zero"});
  check_error("{{ messages }}", {"tojson"});
  check_error("{% set m = messages[0] %}{% set m.role = 1 %}", {"'m' is no namespace"});
}

TEST_CASE("a hostile template ends with an error") {
  check_error("{{ " + repeated("(", 100'000) + " }}", {"too deep"});
  check_error("{{ " + repeated("not ", 100'000) + "1 }}", {"too deep"});
  check_error("{{ " + repeated("[", 100'000), {"does not end"});
  check_error(repeated("{% if 1 %}", 100'000), {"too deep"});
  check_error("{% if 1 %}" + repeated("{% elif 1 %}", 100'000) + "{% endif %}", {"too deep"});
  check_error("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
              {"steps"});
  check_error("{% for i in range(999999999) %}{% endfor %}", {"range"});
  check_error(
      "{% set ns = namespace(a='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}"
      "{% set ns.a = ns.a + ns.a %}{% endfor %}",
      {"grows"});
  check_error("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}", {"nested"});
  for (const char* chain : {"+ 1", "| trim", " is none", ".a", "[0]", "()"})
    check_error("{{ x " + repeated(chain, 100'000) + "}}", {"too many operations"});
  const std::string loop = "{% set n = namespace(a='aaaa', b='aaaa', l=[1], m=[1]) %}{% for i in ";
  for (auto [body, error] : std::initializer_list<std::pair<const char*, const char*>>{
           {"range(99999) %}{% set n.l = [n.l] %}", "nested"},
           {"range(99) %}{% set n.l = [n.l, n.l] %}", "entries"},
           {"range(99999) %}{% set n.l = n.l + [range(99999)] %}", "steps"},
           {"range(99) %}{% set n.a = n.a ~ n.a %}", "grows"},
           {"range(99) %}{% set n.a = [n.a, n.a] | join(n.a) %}", "grows"},
           {"range(22) %}{% set n.a = n.a + n.a %}{{ n.a | replace('aa', 'b') | length }}"
            "{{ n.a.split('a') | length }}",
            "parts"},
           {"range(99999) %}{{ range(99999) | length }}", "steps"},
           {"range(99999) %}{% for j in n.l %}{% set n.l = range(99999) %}{% break %}{% endfor %}",
            "steps"},
           {"range(17) %}{% set n.l = [n.l, n.l] %}{% set n.m = [n.m, n.m] %}{% endfor %}"
            "{% for i in range(99999) %}{% if n.l == n.m %}{% endif %}",
            "steps"},
           {"range(22) %}{% set n.a = n.a + n.a %}{% set n.b = n.b + n.b %}{% endfor %}"
            "{% for i in range(99999) %}{% if n.a + 'b' in n.b %}{% endif %}",
            "steps"}})
    check_error(loop + body + "{% endfor %}", {error});
  check_error("{{ range(1, 9223372036854775807, 9000000000000000000) }}", {"range of 9"});
}
