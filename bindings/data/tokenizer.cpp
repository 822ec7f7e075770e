// The Lua class redco.Tokenizer.
#include "tokenizer.h"

#include "json_values.h"
#include "lua_tokenizer.h"
#include "state/arguments.h"
#include "state/object.h"
#include "state/tensor.h"
#include "torch/sharding.h"

#include <map>
#include <memory>

namespace redco::lua {

namespace {

struct LuaDecodeStream {
  static constexpr const char* lua_name = "DecodeStream";
  DecodeStream stream;
  std::shared_ptr<LuaTokenizer> owner;
};

// ---- arguments ----

// A list, a one-dimensional tensor, or one number.
std::vector<int64_t> check_ids(lua_State* L, int index, const std::string& what) {
  if (at::Tensor* tensor = test_tensor(L, index)) {
    require(tensor->dim() <= 1 && c10::isIntegralType(tensor->scalar_type(), false), what,
            ": expected integers in one dimension, got ", described(*tensor),
            tensor->dim() == 2 ? "; Tokenizer:batch_decode decodes rows" : "");
    at::Tensor ids = tensor->to(at::kCPU, at::kLong).contiguous();
    const int64_t* first = ids.const_data_ptr<int64_t>();
    return {first, first + ids.numel()};
  }
  if (auto id = test_integer(L, index)) return {*id};
  require(lua_istable(L, index), what, ": expected a list or a tensor of integers, got ",
          described(L, index));
  std::vector<int64_t> ids;
  for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    ids.push_back(check_integer(L, -1, (what + ": entry " + std::to_string(i)).c_str()));
    lua_pop(L, 1);
  }
  return ids;
}

// The table of named arguments at `index`, or an empty one.
NamedArguments named(lua_State* L, int index, const char* function) {
  if (lua_isnoneornil(L, index)) {
    lua_settop(L, index - 1);
    lua_newtable(L);
  }
  return NamedArguments(L, index, function);
}

std::optional<Truncation> check_truncation(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> std::optional<Truncation> {
    args.push("truncation");
    if (lua_isnil(L, -1) || (lua_isboolean(L, -1) && !lua_toboolean(L, -1))) return std::nullopt;
    static const std::map<std::string, Truncation> kinds = {
        {"longest_first", Truncation::longest_first},
        {"only_first", Truncation::only_first},
        {"only_second", Truncation::only_second}};
    std::string name = lua_isboolean(L, -1)             ? "longest_first"
                       : lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1)
                                                        : "";
    auto kind = kinds.find(name);
    require(kind != kinds.end(), args.function(),
            ": truncation: expected true, false, \"longest_first\", \"only_first\" or "
            "\"only_second\", got ",
            described(L, -1));
    return kind->second;
  });
}

// Reads the options common to encoding a text and a batch. Padding also uses `max_length`.
EncodeOptions encode_options(NamedArguments& args, const Tokenizer& tokenizer,
                             std::optional<int64_t> max_length) {
  EncodeOptions options;
  options.add_special_tokens = args.get<bool>("add_special_tokens", true);
  if (auto side = args.optional<std::string>("truncation_side"))
    options.truncation_side = check_side(args.function() + ": truncation_side", *side);
  if (auto truncation = check_truncation(args)) {
    options.truncation = *truncation;
    options.max_length = max_length ? max_length : tokenizer.model_max_length();
    require(options.max_length.has_value(), args.function(),
            ": truncation needs max_length: the tokenizer's files do not set it");
  }
  return options;
}

std::optional<std::string> text_pair(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> std::optional<std::string> {
    args.push("text_pair");
    if (lua_isnil(L, -1)) return std::nullopt;
    return check_text(L, lua_gettop(L), args.function() + ": text_pair");
  });
}

Padding check_padding(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&] {
    args.push("padding");
    if (lua_isnil(L, -1) || (lua_isboolean(L, -1) && !lua_toboolean(L, -1))) return Padding::none;
    std::string name = lua_isboolean(L, -1)  ? "longest"
                       : lua_isstring(L, -1) ? lua_tostring(L, -1)
                                             : "";
    require(name == "longest" || name == "max_length", args.function(),
            ": padding: expected false, \"longest\" or \"max_length\", got ", described(L, -1));
    return name == "longest" ? Padding::longest : Padding::max_length;
  });
}

DecodeOptions decode_options(lua_State* L, int index, const char* function) {
  NamedArguments args = named(L, index, function);
  DecodeOptions options;
  options.skip_special_tokens = args.get<bool>("skip_special_tokens", false);
  options.clean_up_tokenization_spaces = args.optional<bool>("clean_up_tokenization_spaces");
  options.decode_with_timestamps = args.get<bool>("decode_with_timestamps", false);
  args.finish();
  return options;
}

// ---- methods ----

int from_pretrained(lua_State* L) {
  push_tokenizer(
      L, Tokenizer::from_pretrained(check_text(L, 1, "redco.Tokenizer.from_pretrained: path")));
  return 1;
}

Encoding encode_one(lua_State* L, const char* function, bool with_tokens) {
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  std::string text = check_text(L, 2, std::string(function) + ": text");
  NamedArguments args = named(L, 3, function);
  EncodeOptions options = encode_options(args, tokenizer, args.optional<int64_t>("max_length"));
  options.with_tokens = with_tokens;
  if (with_tokens) options.add_special_tokens = args.get<bool>("add_special_tokens", false);
  auto pair = text_pair(args);
  args.finish();
  return pair ? tokenizer.encode(text, *pair, options) : tokenizer.encode(text, options);
}

int encode(lua_State* L) {
  push_list(L, encode_one(L, "Tokenizer:encode", false).ids, push_integer);
  return 1;
}

int tokenize(lua_State* L) {
  push_list(L, encode_one(L, "Tokenizer:tokenize", true).tokens, push_text);
  return 1;
}

// Pushes the tensors of a batch of texts, with the options in the arguments of a call. Texts that a
// template has written contain their special tokens.
void push_batch(lua_State* L, const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                NamedArguments& args, bool is_by_template) {
  BatchOptions options;
  options.padded_length = args.optional<int64_t>("max_length");
  options.encode = encode_options(args, tokenizer, options.padded_length);
  if (is_by_template) options.encode.add_special_tokens = false;
  options.padding = check_padding(args);
  require(
      !options.padded_length || options.encode.max_length || options.padding == Padding::max_length,
      "Tokenizer: max_length is for truncation = true and for padding = \"max_length\"");
  if (auto side = args.optional<std::string>("padding_side"))
    options.padding_side = check_side("Tokenizer: padding_side", *side);
  options.pad_to_multiple_of = args.optional<int64_t>("pad_to_multiple_of");
  options.encode.with_offsets = args.get<bool>("return_offsets_mapping", false);
  bool with_mask = args.get<bool>("return_special_tokens_mask", false);
  bool with_attention_mask = args.get<bool>("return_attention_mask", tokenizer.returns_mask());
  bool with_types = args.get<bool>("return_token_type_ids", tokenizer.returns_type_ids());
  options.encode.with_overflow = args.get<bool>("return_overflowing_tokens", false);
  require(!options.encode.with_overflow || options.encode.max_length,
          "Tokenizer: return_overflowing_tokens needs truncation");
  if (auto stride = args.optional<int64_t>("stride")) {
    require(options.encode.with_overflow,
            "Tokenizer: stride is for return_overflowing_tokens = true");
    options.encode.stride = *stride;
  }
  std::vector<std::string> pairs;
  if (args.has("text_pair")) {
    args.push("text_pair");
    pairs = check_texts(L, lua_gettop(L), "Tokenizer: text_pair");
    lua_pop(L, 1);
  }
  args.finish();
  BatchEncoding batch = tokenizer.encode_batch(texts, options, pairs);
  lua_createtable(L, 0, 3);
  auto set = [&](const char* name, const at::Tensor& tensor) {
    push_tensor(L, tensor);
    lua_setfield(L, -2, name);
  };
  set("input_ids", batch.input_ids);
  if (with_attention_mask) set("attention_mask", batch.attention_mask);
  if (with_types) set("token_type_ids", batch.token_type_ids);
  if (options.encode.with_overflow)
    set("overflow_to_sample_mapping", batch.overflow_to_sample_mapping);
  if (options.encode.with_offsets) set("offset_mapping", batch.offset_mapping);
  if (with_mask) set("special_tokens_mask", batch.special_tokens_mask);
}

int call_tokenizer(lua_State* L) {
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  auto texts = check_texts(L, 2, "Tokenizer: texts");
  NamedArguments args = named(L, 3, "Tokenizer");
  push_batch(L, tokenizer, texts, args, false);
  return 1;
}

int decode(lua_State* L) {
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  auto ids = check_ids(L, 2, "Tokenizer:decode: ids");
  push_text(L, tokenizer.decode(ids, decode_options(L, 3, "Tokenizer:decode")));
  return 1;
}

int batch_decode(lua_State* L) {
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  const std::string what = "Tokenizer:batch_decode: sequences";
  std::vector<std::vector<int64_t>> rows;
  if (at::Tensor* tensor = test_tensor(L, 2)) {
    require(tensor->dim() == 2, what, ": expected two dimensions, got ", described(*tensor));
    for (int64_t i = 0; i < tensor->size(0); ++i) {
      push_tensor(L, tensor->select(0, i), 0);
      rows.push_back(check_ids(L, lua_gettop(L), what));
      lua_pop(L, 1);
    }
  } else {
    require(lua_istable(L, 2), what, ": expected a list or a tensor, got ", described(L, 2));
    for (int i = 1; i <= int(lua_objlen(L, 2)); ++i) {
      lua_rawgeti(L, 2, i);
      rows.push_back(check_ids(L, lua_gettop(L), what + ": entry " + std::to_string(i)));
      lua_pop(L, 1);
    }
  }
  DecodeOptions options = decode_options(L, 3, "Tokenizer:batch_decode");
  push_list(L, rows, [&](lua_State* state, const std::vector<int64_t>& ids) {
    push_text(state, tokenizer.decode(ids, options));
  });
  return 1;
}

void push_id(lua_State* L, const Tokenizer& tokenizer, const std::string& token) {
  auto id = tokenizer.token_to_id(token);
  if (!id) id = tokenizer.special_token_id("unk");
  require(id.has_value(), "Tokenizer:convert_tokens_to_ids: '", token,
          "' is not in the vocabulary");
  push_integer(L, *id);
}

int convert_tokens_to_ids(lua_State* L) {
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  auto tokens = check_texts(L, 2, "Tokenizer:convert_tokens_to_ids: tokens");
  if (lua_type(L, 2) == LUA_TSTRING)
    push_id(L, tokenizer, tokens[0]);
  else
    push_list(L, tokens, [&](lua_State* state, const std::string& token) {
      push_id(state, tokenizer, token);
    });
  return 1;
}

void push_token(lua_State* L, const Tokenizer& tokenizer, int64_t id) {
  auto token = tokenizer.id_to_token(id);
  require(token.has_value(), "Tokenizer:convert_ids_to_tokens: no token has the number ", id,
          "; there are ", tokenizer.size());
  push_text(L, *token);
}

int convert_ids_to_tokens(lua_State* L) {
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  auto ids = check_ids(L, 2, "Tokenizer:convert_ids_to_tokens: ids");
  if (test_integer(L, 2))
    push_token(L, tokenizer, ids[0]);
  else
    push_list(L, ids, [&](lua_State* state, int64_t id) { push_token(state, tokenizer, id); });
  return 1;
}

int save_pretrained(lua_State* L) {
  std::string folder = check_text(L, 2, "Tokenizer:save_pretrained: folder");
  std::shared_ptr<const Mesh> mesh = current_mesh(L);
  if (!mesh || mesh->processes().rank == 0) Reading(L).tokenizer().save_pretrained(folder);
  return 0;
}

Json::Object template_variables(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> Json::Object {
    args.push("variables");
    if (lua_isnil(L, -1)) return {};
    Json variables = check_json(L, -1, "variables");
    auto members = variables.get<Json::Object>();
    require(members != nullptr, args.function(), ": variables: expected a table of names, got ",
            described(L, -1));
    return *members;
  });
}

void push_masked(lua_State* L, const ChatEncoding& encoding) {
  lua_createtable(L, 0, 2);
  push_list(L, encoding.ids, push_integer);
  lua_setfield(L, -2, "input_ids");
  if (!encoding.assistant_mask) return;
  push_list(L, *encoding.assistant_mask, push_integer);
  lua_setfield(L, -2, "assistant_masks");
}

int apply_chat_template(lua_State* L) {
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  require(lua_istable(L, 2), "Tokenizer:apply_chat_template: expected a list of messages, got ",
          described(L, 2));
  Json messages = check_json(L, 2, "messages");
  const auto* list = messages.get<Json::List>();
  const bool is_batch = list && !list->empty() && list->front().get<Json::List>();
  const Json::List conversations = is_batch ? *list : Json::List{messages};
  NamedArguments args = named(L, 3, "Tokenizer:apply_chat_template");
  bool prompt = args.get<bool>("add_generation_prompt", false);
  bool tokenize = args.get<bool>("tokenize", true);
  bool with_mask = args.get<bool>("return_assistant_tokens_mask", false);
  Json::Object variables = template_variables(args);
  bool is_padded = tokenize && check_padding(args) != Padding::none;
  if (!is_padded) args.finish();
  require(!with_mask || (tokenize && !is_padded), args.function(),
          ": return_assistant_tokens_mask is for tokens without padding");
  auto of_each = [&](auto make) {
    std::vector<decltype(make(messages))> results;
    for (const Json& conversation : conversations) {
      try {
        results.push_back(make(conversation));
      } catch (const Error& error) {
        if (!is_batch) throw;
        fail("conversation ", results.size() + 1, ": ", error.what());
      }
    }
    return results;
  };
  auto push_results = [&](const auto& results, auto push) {
    if (is_batch)
      push_list(L, results, push);
    else
      push(L, results[0]);
    return 1;
  };
  if (with_mask)
    return push_results(of_each([&](const Json& conversation) {
                          return tokenizer.encode_chat(conversation, prompt, variables);
                        }),
                        push_masked);
  auto texts = of_each([&](const Json& conversation) {
    return tokenizer.apply_chat_template(conversation, prompt, variables);
  });
  if (!tokenize) return push_results(texts, push_text);
  if (is_padded) {
    push_batch(L, tokenizer, texts, args, true);
    return 1;
  }
  return push_results(texts, [&](lua_State* state, const std::string& text) {
    EncodeOptions options;
    options.add_special_tokens = false;  // the template writes them
    push_list(state, tokenizer.encode(text, options).ids, push_integer);
  });
}

int decode_stream(lua_State* L) {
  auto object = check_object<LuaTokenizer>(L, 1, "Tokenizer:decode_stream");
  NamedArguments args = named(L, 2, "Tokenizer:decode_stream");
  DecodeOptions options;
  options.skip_special_tokens = args.get<bool>("skip_special_tokens", false);
  args.finish();
  std::shared_ptr<const Tokenizer> tokenizer(object, &object->tokenizer);
  push_object(L, std::make_shared<LuaDecodeStream>(
                     LuaDecodeStream{DecodeStream(std::move(tokenizer), options), object}));
  return 1;
}

int stream_step(lua_State* L) {
  auto object = check_object<LuaDecodeStream>(L, 1, "DecodeStream:step");
  std::shared_lock lock(object->owner->mutex);
  push_text(L, object->stream.step(check_integer(L, 2, "DecodeStream:step: id")));
  return 1;
}

int stream_finish(lua_State* L) {
  auto object = check_object<LuaDecodeStream>(L, 1, "DecodeStream:finish");
  std::shared_lock lock(object->owner->mutex);
  push_text(L, object->stream.finish());
  return 1;
}

}  // namespace

void push_tokenizer(lua_State* L, Tokenizer tokenizer) {
  push_object(L, std::make_shared<LuaTokenizer>(std::move(tokenizer)));
}

constexpr const char* tokenizer_text =
    R"text(Tokenizer {vocab_size, model_max_length, chat_template,
  padding_side, truncation_side, additional_special_tokens: list of strings,
  bos_token, eos_token, unk_token, sep_token, cls_token, pad_token, mask_token, bos_token_id,
  eos_token_id, unk_token_id, sep_token_id, cls_token_id, pad_token_id, mask_token_id}
Converts text to token ids and back. Call it for batches: `tok(texts, {...})`. You can set the
special tokens, to tokens of the vocabulary, chat_template, padding_side and truncation_side. #tok
is the number of all tokens, vocab_size that without added ones. The sides come from
tokenizer_config.json, else from tokenizer.json; the default is "right", and for LLaMA's and Gemma's
tokenizers it is to pad on the "left".)text";

constexpr const char* call_text =
    R"text(__call(self, texts: string or list of strings, {padding: boolean or string = false,
  truncation: boolean or string = false, max_length = nil, padding_side = nil,
  truncation_side = nil, pad_to_multiple_of = nil, add_special_tokens = true,
  return_offsets_mapping = false, return_special_tokens_mask = false,
  return_attention_mask: boolean = nil, return_token_type_ids: boolean = nil,
  return_overflowing_tokens = false, stride: integer = 0,
  text_pair: string or list of strings = nil}) -> {input_ids, attention_mask, ...}
Tokenizes a batch. Returns int64 tensors [batch, length] for a model.
  padding: "longest" (or true) or "max_length"
  truncation: true or "longest_first", or of a pair "only_first" or "only_second"
  return_attention_mask: by default unless the tokenizer's files say that the model takes none
  return_token_type_ids: adds token_type_ids, 1 for the second text of a pair; by default if the
    tokenizer's files say that the model takes them
  return_overflowing_tokens: adds rows for what truncation removed, each beginning with the last
    `stride` tokens of the row before, and overflow_to_sample_mapping [batch], the text of each row
    (from 0)
  return_offsets_mapping: adds offset_mapping [batch, length, 2], character positions in each text)text";

void add_tokenizer(lua_State* L) {
  make_object_type<LuaTokenizer>(
      L, tokenizer_text,
      {{"encode", encode,
        "encode(self, text, {add_special_tokens = true, truncation: boolean or string = false, "
        "max_length = nil, truncation_side = nil, text_pair = nil}) -> list of integers\n"
        "Returns the token ids of a text. The text is UTF-8; invalid bytes count as U+FFFD. For "
        "batches as tensors, call the tokenizer itself: tok(texts, {...})."},
       {"tokenize", tokenize,
        "tokenize(self, text, {add_special_tokens = false, truncation: boolean or string = false, "
        "max_length = nil, truncation_side = nil, text_pair = nil}) -> list of strings\n"
        "Returns the tokens of a text as the vocabulary spells them. Arguments are as in "
        "`encode`."},
       {"decode", decode,
        "decode(self, ids, {skip_special_tokens = false, clean_up_tokenization_spaces = nil, "
        "decode_with_timestamps = false}) -> string\n"
        "Returns the text of a list or tensor of ids. Ids beyond the vocabulary are skipped; "
        "negative ids raise an error. A Whisper tokenizer leaves out times, or with "
        "decode_with_timestamps shows them, <|1.20|>, in seconds from the beginning of the sound; "
        "with skip_special_tokens it leaves out the tokens from <|startofprev|> to "
        "<|startoftranscript|>."},
       {"batch_decode", batch_decode,
        "batch_decode(self, sequences: table or Tensor, {skip_special_tokens = false, "
        "clean_up_tokenization_spaces = nil, decode_with_timestamps = false}) -> list of strings\n"
        "Returns the texts of a list of lists, or of a tensor [batch, length]."},
       {"convert_tokens_to_ids", convert_tokens_to_ids,
        "convert_tokens_to_ids(self, tokens: string or list of strings) -> integer or list of "
        "integers\n"
        "Returns the id of a token, or of each token of a list. A token that is not in the "
        "vocabulary gets the id of unk_token; without unk_token it raises an error."},
       {"convert_ids_to_tokens", convert_ids_to_tokens,
        "convert_ids_to_tokens(self, ids: integer or list of integers or Tensor) -> string or "
        "list of strings\n"
        "Returns the token of an id, or of each id of a list or tensor."},
       {"decode_stream", decode_stream,
        "decode_stream(self, {skip_special_tokens = false}) -> DecodeStream\n"
        "Returns a stream that decodes ids one by one: `stream:step(id)` returns the next piece "
        "of text, `stream:finish()` the rest."},
       {"apply_chat_template", apply_chat_template,
        "apply_chat_template(self, messages, {add_generation_prompt = false, tokenize = true, "
        "variables = nil, padding: boolean or string = false, return_assistant_tokens_mask = "
        "false}) -> list of integers or string or table\n"
        "Formats a conversation, {{role = \"user\", content = \"...\"}, ...}, for the model. "
        "Returns token ids, or text with tokenize = false. For a list of conversations it returns "
        "a list of these; with `padding`, what the tokenizer's call returns, with its arguments. "
        "With return_assistant_tokens_mask it returns {input_ids, assistant_masks}: the mask is 1 "
        "for the tokens that the template marks by {% generation %} as the model's own, else 0; "
        "nil if the template marks none. "
        "`variables` is a table of further variables of the template, such as `tools`. Templates "
        "see the keys of tables read from JSON, and of `redco.ordered_table`, in their order, and "
        "those of other tables sorted."},
       {"add_tokens", add_tokens, add_tokens_text},
       {"add_special_tokens", add_special_tokens, add_special_tokens_text},
       {"save_pretrained", save_pretrained,
        "save_pretrained(self, folder)\n"
        "Writes the files of the tokenizer into a folder, which is created if necessary. They are "
        "copied byte for byte unless the script added tokens or set special tokens or the chat "
        "template. Files of another tokenizer there are removed. Only the first process writes."}},
      tokenizer_field);
  luaL_getmetatable(L, LuaTokenizer::lua_name);
  register_functions(L, "Tokenizer:", {{"__call", call_tokenizer, call_text}});
  const std::pair<const char*, lua_CFunction> metamethods[] = {{"__len", count_tokens},
                                                               {"__newindex", set_tokenizer_field}};
  for (auto [name, function] : metamethods) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
  lua_pop(L, 1);
  make_object_type<LuaDecodeStream>(
      L,
      "DecodeStream {}\n"
      "Decodes token ids one by one.",
      {{"step", stream_step,
        "step(self, id) -> string\n"
        "Returns the text that this token adds; \"\" while a character is incomplete."},
       {"finish", stream_finish,
        "finish(self) -> string\n"
        "Returns the remaining text. The stream can then be used again."}});
  lua_pushcfunction(L, from_pretrained);
  lua_setfield(L, -2, "read_tokenizer");
}

}  // namespace redco::lua
