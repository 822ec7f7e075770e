#include "habits.h"

#include <algorithm>
#include <regex>
#include <sstream>

namespace redco::lua {

namespace {

// A pattern of a line that is not Lua, and advice. The first pattern that matches counts.
struct Habit {
  const char* pattern;
  const char* text;
};
constexpr Habit habits[] = {
    {R"(^\s*(import|from)\s+\w)", R"(Lua has no import: local redco = require "redco")"},
    {R"(^\s*(async\s+)?def\s)", "a function is written: local function f(x) ... end"},
    {R"(^\s*class\s)", "Lua has no classes: a model is a table of parameters, and functions of it"},
    {R"(^\s*with\s.*no_grad)", "write: torch.no_grad(function() ... end)"},
    {R"(^\s*(#|//))", "a comment begins with --"},
    {R"(\blambda\b)", "an anonymous function is written: function(x) return x + 1 end"},
    {R"(\b(elif|else\s+if)\b)", "write: elseif ... then"},
    {R"(^\s*(if|while|for|try|else)\b.*:\s*$)",
     "blocks are written: if x then ... end, while x do ... end, for i = 1, n do ... end"},
    {R"(!=)", "\"not equal\" is written ~="},
    {R"(![\w(])", "\"not\" is written: not x"},
    {R"(&&|\|\|)", "write `and` and `or`"},
    {R"(\+\+|--\s*$|[-+*/%]=)", "there is no such operator: write x = x + 1"},
    {R"(\*\*)", "a power is written x ^ 2"},
    {R"([\w)\]]\s*@\s*[\w(])", "a product of matrices is written a:matmul(b)"},
    {R"(\b[fr]["'])", R"(texts are formatted by ("loss %.3f"):format(x))"},
    {R"(\w\[[^\]]*:[^\]]*\])",
     "a slice is written x[{ { 2, 5 } }], of the second dimension too "
     "x[{ {}, { 2, 5 } }]"},
    {R"(\w\[[^\]]*,[^\]]*\])", "an element is written x[{ 0, 1 }]"},
    {R"((^|[=(,{])\s*\[(?!\[)[^\]=]*($|\](?!\s*=)))", "a list is written { 1, 2, 3 }"},
    {R"([({,]\s*["'][^"']*["']\s*[:=])",
     R"(a field is written name = value, or ["a name"] = value)"},
    {R"([{,]\s*\w+\s*:(?!\w+\s*[({"']))", "a field is written name = value"},
    {R"(\w\((.*[,({])?\s*\w+\s*=(?!=)[^()]*\))",
     "named arguments are written f { name = value }, or after others "
     "f(x, { name = value })"},
    {R"(^\s*(if|while|elseif)\b[^=~<>]*[^=~<>]=(?!=))", "a comparison is written =="},
    {R"(\bfunction\b[^)]*\)\s*\{)", "a function ends with `end` and has no braces"},
    {R"(\?)", "a choice is written: x and a or b"},
    {R"(^\s*(const|let|var|int|float|auto)\s+\w)", "a variable is declared: local x = 1"},
};

// Names from other languages whose counterparts have other names here.
constexpr Habit habits_of_names[] = {
    {"None|null|NULL|nullptr|undefined", "nil is the word for it here"},
    {"True", "it is written true"},
    {"False", "it is written false"},
    {"len", "#x is the length of a list, x:size(0) that of a tensor"},
    {"range|enumerate", "write: for i = 1, n do ... end, or for i, x in ipairs(list) do ... end"},
    {"str", "tostring(x) makes a text"},
    {"int|float", "math.floor(x) and tonumber(x) make numbers, x:int() and x:float() tensors"},
    {"f|r", R"(texts are formatted by ("loss %.3f"):format(x))"},
    {"self", "`self` exists in a function declared as t:f(), with a colon"},
    {"redco", R"(write: local redco = require "redco")"},
    {"torch|nn|optim", R"(write: local torch, nn = redco.torch, redco.nn)"},
    {"quit|exit", ":q or Ctrl-D ends the prompt, os.exit() a script"},
    {"np|numpy", "redco.torch has the functions of numpy"},
    {"print_function|printf|println", "print(x) prints"},
    {"Deployer|Trainer|Predictor|Tokenizer|Rng|data|diffusion|grad|lora|metrics|models|options|rl|"
     "tree|value_and_grad|vmap",
     "write redco.Trainer, redco.data and so on"},
};

// Names of fields of this library that are elsewhere, or under another name.
constexpr Habit fields[] = {
    {"nn", R"(layers are in redco.nn: local nn = require("redco").nn)"},
    {"functional", "functions such as relu and softmax are in redco.torch, losses in redco.nn"},
    {"optim", "optimizers are in redco.optim"},
    {"utils", "data sets are in redco.data"},
    {"Sequential|sequential|ModuleList",
     "a model is a function: nn.linear(p.out, torch.relu(nn.linear(p.hidden, "
     "x))), or nn.MLP with nn.mlp"},
    {"Module", "a model is a table of parameters and a function, without classes"},
    {"DataLoader|TensorDataset", "Trainer:fit makes batches of a list, with collate_fn"},
    {"array|asarray", "torch.tensor makes a tensor"},
    {"astype", "x:to \"float32\" converts"},
    {"numpy", "x:tolist() returns a table of numbers"},
    {"(Float|Double|Half|Long|Int|Byte|Bool)?Tensor|from_numpy",
     "torch.tensor(list, { dtype = \"float32\" }) makes a tensor"},
    {"device", "a device is a string, \"cpu\" or \"cuda\""},
    {"load_dataset",
     "data sets of the Hub are not downloaded; redco.data.jsonl and "
     "redco.data.parquet read files"},
    {".*[^a-zA-Z0-9_].*",
     "an element is x[{ 0, 1 }], the rows 2 to 4 are x[{ { 2, 5 } }], the "
     "column 0 is x[{ {}, 0 }]"},
    {"ReLU|Softmax|GELU|Sigmoid|Tanh|relu|softmax|gelu|sigmoid|tanh",
     "it is a function of tensors: torch.relu(x), torch.softmax(x, -1), torch.gelu(x)"},
    {"CrossEntropyLoss", "nn.cross_entropy(logits, labels) is the loss"},
    {"MSELoss", "nn.mse_loss(x, y) is the loss"},
    {"zero_grad",
     "a Trainer makes the steps; in a loop, redco.value_and_grad returns new gradients"},
    {"parameters|state_dict", "parameters are a table: redco.tree.leaves(params) lists them"},
    {"train|eval", "models have no mode: loss_fn has the argument is_training"},
};

// Methods of others' models, tokenizers and lists.
constexpr Habit methods[] = {
    {"eval|train",
     "models have no mode: model.loss(params, batch, { train = true }) applies dropout, and "
     "without `train` it does not. A Trainer does both"},
    {"(named_)?parameters|(load_)?state_dict",
     "the parameters are the table model.params: redco.tree.leaves(model.params) lists them"},
    {"to|cuda|cpu",
     "a Trainer and a Predictor move parameters and batches to their device; redco.tree.map moves "
     "a table of tensors"},
    {"half|float|bfloat16", "compute_dtype = \"bfloat16\" of a Trainer computes in it"},
    {"word_ids|char_to_token|token_to_chars",
     "tokenizer(text, { return_offsets_mapping = true }) returns the place of each token in the "
     "text"},
    {"zero_grad|backward",
     "a Trainer makes the steps; in a loop, redco.value_and_grad(f)(params) returns new gradients"},
    {"append|push_back|add", "a value is appended by list[#list + 1] = value"},
    {"keys|values|items", "write: for name, value in pairs(t) do ... end"},
    {"startswith|endswith|strip|split|replace", "texts have Lua's methods: text:find, text:gsub"},
};

// Names of arguments in other libraries, an argument that the function here has, and advice.
constexpr struct {
  const char *pattern, *needs, *text;
} named_arguments[] = {
    {"batch_size|per_device_train_batch_size|train_batch_size", "global_batch_size",
     "per_device_batch_size is the number of examples that a process computes at once, "
     "global_batch_size that of all processes in a step"},
    {"batch_size|per_device_eval_batch_size", "per_device_batch_size",
     "per_device_batch_size is the number of examples that a process computes at once"},
    {"(num_)?(train_)?epochs", "n_epochs", "it is called n_epochs"},
    {"train_(data(set|loader)?|set)|(data(set|loader)?)|examples", "train_examples",
     "train_examples is a list or a data set"},
    {"(eval|val|valid|validation|test)_(data(set|loader)?|set|examples)", "eval_examples",
     "eval_examples is a list or a data set"},
    {"learning_rate|lr", "optimizer",
     "the optimizer has it: redco.optim.adamw { learning_rate = 1e-3 }"},
    {"model", "loss_fn", "params are the parameters of a model, and loss_fn computes with them"},
    {"(n|num)_(gpus|devices|processes|nodes)|gpus|devices|world_size", "n_model_shards",
     "the command line has the number of processes: redco-lua --nproc 2"},
    {"params|parameters", "learning_rate",
     "the parameters are given to redco.Trainer, or to Optimizer:init"},
    {"fp16|bf16|mixed_precision|dtype|amp", "compute_dtype",
     "compute_dtype = \"bfloat16\" computes in it"},
    {"(data_)?collator", "collate_fn", "it is called collate_fn"},
    {"callbacks?", "on_step", "on_step, on_eval, on_epoch and on_save are functions to call"},
    {"compute_metrics|metrics", "eval_metric_fn",
     "eval_metric_fn(examples, predictions) returns metrics"},
    {"enable_thinking|tools|documents|thinking|reasoning_effort|date_string", "variables",
     "variables = { enable_thinking = false } gives values to the template"},
};

// Advice on Lua's own errors. An error contains `part` and ends with `end`.
struct Advice {
  std::string_view part, end, text;
};
constexpr std::string_view on_comparison =
    "compare tensors with x:lt(y), x:le(y), x:gt(y) and x:ge(y)";
constexpr std::string_view on_loop =
    "loops are written: for i, x in ipairs(list), for i, x in data_set:ipairs(), and for a tensor "
    "for i = 0, #x - 1 with x[i]";
constexpr std::string_view on_model =
    "a model of redco.models is called itself: model(params, inputs) computes logits";
constexpr std::string_view on_table =
    "a table is not a function. Parameters of a layer are the first argument of the function "
    "that computes with them: nn.linear(params, x)";
constexpr std::string_view on_userdata =
    "an element or row of a tensor is x[i]; an optimizer is given to redco.Trainer or used by "
    "optimizer:update";
constexpr Advice advices[] = {
    {"attempt to call field 'Tensor'", "(a table value)", "torch.tensor makes a tensor"},
    {"'step' (a number value)", "(a number value)",
     "it is the number of steps done: trainer:train_step { examples = examples } performs one"},
    {"attempt to call field 'forward'", "(a nil value)", on_model},
    {"attempt to call field 'apply'", "(a nil value)", on_model},
    {"attempt to call method", "(a number value)", "it is a field: write it with a dot"},
    {"bad argument #1 to 'pairs'", "got userdata)", on_loop},
    {"bad argument #1 to 'ipairs'", "got userdata)", on_loop},
    {"attempt to call a table value", "", on_table},
    {"attempt to call ", "(a table value)", on_table},
    {"attempt to call a userdata value", "", on_userdata},
    {"attempt to call ", "(a userdata value)", on_userdata},
    {"attempt to compare ", "userdata with number", on_comparison},
    {"attempt to compare ", "number with userdata", on_comparison},
    {"attempt to compare ", "two userdata values", on_comparison},
    {"attempt to index a boolean value", "",
     "== compares two values as a whole: x:eq(y) compares the elements of tensors"},
    {"attempt to index a nil value", "",
     "lists count from 1, and a function without `return` returns nil"},
    {"attempt to index ", "(a function value)",
     "a function is called: redco.Deployer { seed = 1 }"},
    {"number expected, got userdata", "", "x:item() is the number in a tensor of one element"},
    {"module 'torch' not found", "", "write: local torch = require(\"redco\").torch"},
    {"module 'nn' not found", "", "write: local nn = require(\"redco\").nn"},
    {"module 'optim' not found", "", "write: local optim = require(\"redco\").optim"},
    {"module 'redco", "", "the library is: require \"redco\""},
};

std::string line_of(const std::string& code, int number) {
  std::istringstream lines(code);
  std::string line;
  while (number-- > 0 && std::getline(lines, line)) {
  }
  return line;
}

// The line without its comment, and with nothing inside of quotes.
std::string without_texts(const std::string& line) {
  std::string kept;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quote != 0) {
      if (line[i] == '\\') {
        ++i;
        continue;
      }
      if (line[i] != quote) continue;
      quote = 0;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line.compare(i, 3, "-- ") == 0) {
      break;
    }
    kept += line[i];
  }
  return kept;
}

}  // namespace

std::string advice_on_syntax(const std::string& message, const std::string& code) {
  std::smatch position;
  if (!std::regex_search(message, position, std::regex(R"(:(\d{1,8}): )"))) return "";
  int number = std::stoi(position[1]);
  // A block that begins with a colon may be noticed only on its next line.
  for (int i : {number, number - 1}) {
    std::string line = without_texts(line_of(code, i));
    if (i < 1 || line.size() > 1000) continue;  // std::regex recurses
    for (const Habit& habit : habits)
      if (std::regex_search(line, std::regex(habit.pattern))) return std::string("; ") + habit.text;
  }
  bool lacks_comma = std::regex_search(message, std::regex(R"('[)}]' expected.* near '["\w{])"));
  return lacks_comma ? "; is a comma missing before it?" : "";
}

namespace {

bool matches(const std::string& name, const char* pattern) {
  // std::regex recurses.
  return name.size() <= 100 && std::regex_match(name, std::regex(pattern));
}

template <size_t n>
std::string advice_of(const Habit (&table)[n], const std::string& name) {
  for (const Habit& habit : table)
    if (matches(name, habit.pattern)) return std::string("; ") + habit.text;
  return "";
}

}  // namespace

std::string advice_on_name(const std::string& name) { return advice_of(habits_of_names, name); }

std::string advice_on_field(const std::string& name) { return advice_of(fields, name); }

std::string advice_on_argument(const std::string& name, const std::set<std::string>& known) {
  for (const auto& each : named_arguments)
    if (known.contains(each.needs) && matches(name, each.pattern))
      return std::string("; ") + each.text;
  return "";
}

std::string with_advice(const std::string& message, bool is_loop) {
  // A list of places that were searched may follow the first line.
  size_t end = std::min(message.find('\n'), message.size());
  std::string_view first = std::string_view(message).substr(0, end);
  if (is_loop && first.find("attempt to call a ") != std::string_view::npos)
    return message + "; " + std::string(on_loop);
  for (const Advice& each : advices)
    if (first.ends_with(each.end) && first.find(each.part) != std::string_view::npos)
      return std::string(first.substr(0, first.ends_with(':') ? end - 1 : end)) + "; " +
             std::string(each.text) + message.substr(end);
  std::match_results<std::string_view::const_iterator> found;
  static const std::regex nil_global(R"(global '(\w{1,50})' \(a nil value\)$)");
  if (std::regex_search(first.begin(), first.end(), found, nil_global))
    return message + advice_on_name(found[1]);
  static const std::regex nil_method(R"((method|field) '(\w{1,50})' \(a nil value\)$)");
  if (std::regex_search(first.begin(), first.end(), found, nil_method))
    return message + advice_of(methods, found[2]);
  return message;
}

}  // namespace redco::lua
