// The parts of Jinja that chat templates use; tests/peers compares them with jinja2.
#include <redco/error.h>
#include <redco/json.h>
#include <redco/tokenizer.h>

#include <doctest/doctest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

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
  check_error("\n\n{{ lipsum(3) }}", {"line 3", "'lipsum'", "not defined"});
  check_error("{{ 'a'.swapcase() }}", {"swapcase", "strip"});
  check_error("{{ messages.append(1) }}", {"append", "index"});
  check_error("{% include 'a' %}", {"include", "for, generation, if"});
  check_error("{% for a in [] recursive %}{% endfor %}", {"recursive"});
  check_error("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", {"f takes 1 arguments, got 2"});
  check_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", {"nested too deep"});
  check_error("{{ nothing.member }}", {"'nothing'", "not defined"});
  check_error("{{ raise_exception('one turn only') }}", {"one turn only"});
  check_error("{% for m in messages %}", {"endfor"});
  check_error("{{ 'a", {"does not end"});
  check_error("{{ 1 + }}", {"expected a value"});
  check_error("{{ (1, 2 }}", {"does not end"});
  check_error("{{ (1 2) }}", {"')'"});
  check_error("{% if %}{% endif %}", {"expected a value"});
  check_error("{{ 1 / 0 }}", {"zero"});
  check_error("{{ range(3) }}", {"a range", "list"});
  check_error("{% set m = messages[0] %}{% set m.role = 1 %}", {"'m' is no namespace"});
}

TEST_CASE("a hostile template ends with an error") {
  check_error("{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}", {"too deep"});
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
  check_error("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}", {"a namespace"});
  for (const char* chain : {"+ 1", "| trim", ".a", "[0]", "()"})
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
  check_error("{{ range(1, 9223372036854775807, 9000000000000000000) | list }}", {"range of 9"});
}

namespace {

const Json& member(const Json& object, const std::string& key) {
  static const Json null;
  for (const auto& [name, value] : *object.get<Json::Object>())
    if (name == key) return value;
  return null;
}

std::string text(const Json& value) { return *value.get<std::string>(); }

}  // namespace

TEST_CASE("templates like those of public models render as transformers renders them") {
  auto path = std::filesystem::path(TESTS_FOLDER) / "cases/chat_templates/chat_templates.json";
  std::ifstream file(path);
  REQUIRE(file.is_open());
  Json cases = redco::read_json("", std::string(std::istreambuf_iterator<char>(file), {}));
  for (const Json& one : *member(cases, "cases").get<Json::List>()) {
    redco::TokenizerParts parts;
    parts.tokens = {"a"};
    parts.chat_template = text(member(member(cases, "templates"), text(member(one, "template"))));
    CAPTURE(text(member(one, "template")));
    Tokenizer tokenizer = Tokenizer::from_parts("parts: ", parts);
    auto rendered = [&] {
      return tokenizer.apply_chat_template(member(one, "messages"), false,
                                           *member(one, "variables").get<Json::Object>());
    };
    if (member(one, "rendered").get<std::string>())
      CHECK(rendered() == text(member(one, "rendered")));
    else
      CHECK_THROWS_AS(rendered(), redco::Error);
  }
}

TEST_CASE("generation blocks mark tokens") {
  redco::TokenizerParts parts;
  parts.tokens = {"</s>", "a"};
  parts.eos_id = 0;
  auto encode = [&](const std::string& chat_template) {
    parts.chat_template = chat_template;
    return Tokenizer::from_parts("parts: ", parts)
        .encode_chat(Json::List{message("user", "a"), message("assistant", "a")});
  };
  using Ids = std::vector<int64_t>;
  auto marked = encode(
      "{% for m in messages %}a{% generation %}aa{% if loop.last %}{{ eos_token }}{% endif %}"
      "{% endgeneration %}a{% endfor %}");
  CHECK(marked.ids == Ids{1, 1, 1, 1, 1, 1, 1, 0, 1});
  CHECK(marked.assistant_mask == Ids{0, 1, 1, 0, 0, 1, 1, 1, 0});
  // What is empty, or was left by `continue`, marks what it wrote.
  CHECK(encode("a{% generation %}{% endgeneration %}a").assistant_mask == Ids{0, 0});
  CHECK(encode("{% for m in messages %}{% generation %}a{% continue %}a{% endgeneration %}"
               "{% endfor %}a")
            .assistant_mask == Ids{1, 1, 0});
  CHECK_FALSE(encode("a").assistant_mask.has_value());
  // A block that is captured has no place in the output; without the mask that is no matter.
  for (const char* captured :
       {"{% macro f() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ f() }}",
        "{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}",
        "{% filter upper %}{% generation %}a{% endgeneration %}{% endfilter %}"}) {
    CHECK_THROWS_AS(encode(captured), redco::Error);
    CHECK((render(captured) == "a" || render(captured) == "A"));
  }
}

TEST_CASE("keys stay in the order given") {
  redco::TokenizerParts parts;
  parts.tokens = {"a"};
  parts.chat_template = "{{ tools | tojson }} {% for k in tools[0] %}{{ k }} {% endfor %}";
  Json tools = redco::read_json("", R"([{"type": "f", "b": {"z": [], "a": {}}, "a": null}])");
  CHECK(Tokenizer::from_parts("parts: ", parts)
            .apply_chat_template(Json::List{message("user", "x")}, false, {{"tools", tools}}) ==
        R"([{"type": "f", "b": {"z": [], "a": {}}, "a": null}] type b a )");
}

TEST_CASE("macros, dates and Python's values") {
  CHECK(render("{% macro f(a, b='-') %}<{{ a }}{{ b }}{{ caller() if caller }}>{% endmacro %}"
               "{{ f(1) }}{{ f(b=2, a=3) }}{% call f('x') %}in{% endcall %}") == "<1-><32><x-in>");
  CHECK(render("{{ [1, 'it\\'s', none, {'a': (1,)}] }} {{ 1e16 }} {{ 7 // -2 }} {{ 2 ** 5 }}") ==
        "[1, \"it's\", None, {'a': (1,)}] 1e+16 -4 32");
  CHECK(render("{% if tools is defined and tools is none %}none{% endif %}") == "none");
  std::time_t now = std::time(nullptr);
  std::string year = std::to_string(1900 + std::localtime(&now)->tm_year);
  CHECK(render("{{ strftime_now('%Y') }}") == year);
}

TEST_CASE("details are those of Python") {
  CHECK(render("{{ '  two  words '.split(none, 1) }}") == "['two', 'words ']");
  CHECK(render("{{ '  two  words '.rsplit(none, 1) }}") == "['  two', 'words']");
  CHECK(render("{{ 4 % -1.0 }} {{ 1.0 // 0.1 }} {{ -5.5 % 2 }} {{ 7.0 // -2 }}") ==
        "-0.0 9.0 0.5 -4.0");
  CHECK(render("{{ (nothing | safe) * 2 }}") == "");
  CHECK(render("{{ '%d' % 1e20 }}") == "100000000000000000000");
  CHECK(render("{{ messages[0].items == messages[0].items }}") == "True");
  CHECK(render("{{ messages[0].items == messages[1].items }}") == "False");
  CHECK(render("{% if false %}{{ 1 | string.lower }}{% endif %}") == "");
  check_error("{{ 1 | string.lower }}", {"string.lower"});
  check_error("{{ '%d' % (1e200 * 1e200) }}", {"%d", "inf"});
  CHECK(render("{{ '1e400' | int(7) }} {{ (1e200 * 1e200 - 1e200 * 1e200) | int(7) }} "
               "{{ '9.5' | int }} {{ 9.2e18 | int }}") == "7 7 9 9200000000000000000");
  check_error("{{ 1e20 | int(-1) }}", {"1e+20 is too large"});
  check_error("{{ '99999999999999999999' | int }}", {"99999999999999999999 is too large"});
  check_error("{{ (1e200 * 1e200) | int(7) }}", {"inf is too large"});
  check_error("{{ '%x' % 1.5 }}", {"%x"});
  // A capital sigma that ends a word has another lower case.
  CHECK(render("{{ 'ΟΔΟΣ ΣΑΣ Σ' | lower }} {{ 'ΑΣ’Α Α’Σ\u0301.'.lower() }}") ==
        "οδος σας σ ασ’α α’ς\u0301.");
  CHECK(render("{{ 'ας' is lower }} {{ 'ΑΣ' | capitalize }} {{ 'İx İX' | capitalize }}") ==
        "True Ας İx i\u0307x");
  CHECK(render("{{ 'ΟΔΟΣ ΑΣ-(ΣΑΣ' | title }} {{ 'ΑΣ ΟΔΟΣ1Σ İİ.Σ'.title() }}") ==
        "Οδος Ασ-(Σας Ας Οδος1Σ İi\u0307.Σ");
}

TEST_CASE("dictionaries have keys of all kinds") {
  CHECK(render("{% set d = {0: 'no', 512: 'some', none: 1, (1, 'a'): 2, 2.5: 3} %}{{ d[512] }} "
               "{{ d.get(none) }} {{ d[(1, 'a')] }} {{ 0 in d }} {{ '0' in d }} "
               "{{ d[7] is defined }} {{ d }}") ==
        "some 1 2 True False False {0: 'no', 512: 'some', None: 1, (1, 'a'): 2, 2.5: 3}");
  CHECK(render("{{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {0: 1, none: 2, true: 3, 2.5: 4} | tojson "
               "}}") == "{1: 'c'} {\"0\": 1, \"null\": 2, \"true\": 3, \"2.5\": 4}");
  CHECK(render("{% for k, v in {3: 'x', 1: 'y'} | dictsort %}{{ k }}{{ v }} {% endfor %}"
               "{{ {2: 0, 1: 0}.items() | list }}") == "1y 3x [(2, 0), (1, 0)]");
  CHECK(render("{{ dict([(1, 2)])[1] }} {{ {3: 1, 2: 2} | tojson(sort_keys=true) }}") ==
        "2 {\"2\": 2, \"3\": 1}");
  check_error("{{ {[1]: 2} }}", {"a list has no hash"});
  check_error("{{ {(1, 2): 3} | tojson }}", {"tojson of a tuple"});
  check_error("{{ {1: 2, 'a': 3} | dictsort }}", {"no order"});
}

TEST_CASE("text that is safe escapes what is added to it") {
  CHECK(render("{{ \"to '\"|safe + messages[1].role + '<' + \"'\" }} {{ '<' + 'a'|safe }} "
               "{{ ('<%s>' | safe) % '\"' }} {{ '<' ~ ('>' | safe) ~ '&' }}") ==
        "to 'user&lt;&#39; &lt;a <&#34;> <>&");
  CHECK(render("{{ ('a,b' | safe).split(',')[0] + '<' }} {{ ('<' | safe | upper) * 2 + '&' }} "
               "{{ ('-' | safe).join(['<', 1]) }} {{ ('{}' | safe).format('>') }} "
               "{{ ('ab' | safe)[1:] + '>' }} {{ ['<' | safe] }}") ==
        "a&lt; <<&amp; &lt;-1 &gt; b&gt; [Markup('<')]");
  CHECK(
      render("{{ '<' | e }} {{ ('<' | safe) == '<' }} {{ 'a' | safe is escaped }} "
             "{{ ('<' | safe).replace('<', '>') }} {{ ('<' | safe | replace('<', '>')) + '<' }}") ==
      "&lt; True True &gt; ><");
}

TEST_CASE("what is no conversation is refused") {
  redco::TokenizerParts parts;
  parts.tokens = {"</s>", "a"};
  parts.eos_id = 0;
  parts.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}";
  const Tokenizer tokenizer = Tokenizer::from_parts("parts: ", parts);
  for (const auto& [messages, text] : std::initializer_list<std::pair<Json, const char*>>{
           {message("user", "x"), "one message, expected a list of them"},
           {Json::List{}, "no messages"},
           {Json::Object{}, "no messages"},
           {"hi", "expected a list of messages"},
           {Json::List{message("user", "x"), "hi"}, "message 2"},
           {Json::List{Json::Object{}}, "message 1"},
           {Json::List{Json::List{message("user", "x")}}, "message 1"}}) {
    try {
      tokenizer.apply_chat_template(messages, false);
      FAIL_CHECK("expected an error: ", text);
    } catch (const redco::Error& error) {
      CHECK_MESSAGE(std::string(error.what()).find(text) != std::string::npos, error.what());
    }
  }
}
