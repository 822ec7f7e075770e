--- What `help` says of a model's functions: by name, each beginning with the call.
local registry = require "redco.registry"

local texts = {
  ["Model"] = [[
Model {params, config: table, generation_config: table, is_encoder_decoder: boolean}
A function of parameters and inputs. It has a loss, generation and a folder. What it has besides
itself is called with a dot: `model.loss(params, batch)`. Made by `redco.models.from_pretrained`,
`redco.models.from_config` and `redco.models.from_encoder_decoder_pretrained`.
  params: a flat table by Hugging Face's names
  config: the whole configuration, by Hugging Face's keys
  generation_config: what generation_config.json of its folder has]],

  ["Model:__call"] = [[
__call(self, params, inputs, {train = false, rng, cache}) -> logits [batch, length, vocab_size]
Decoders: inputs.input_ids [batch, length], attention_mask (1 for tokens, 0 for padding) and
position_ids if need be, or, for rows of several sequences, segment_ids and position_ids as
redco.data.pack gives them.

Encoder-decoders: input_ids (or pixel_values [batch, channels, height, width]) and attention_mask are
the encoder's; decoder_input_ids, if left out, are made of inputs.labels by
`Model.decoder_input_ids`; decoder_attention_mask marks their padding; encoder_hidden_states, what
`Model.encode` gave, saves the encoder's work.

Classes of images: pixel_values, labels [batch], logits [batch, num_labels].
  cache: of `redco.models.new_cache`; the inputs are then only the new tokens]],

  ["Model.loss"] = [[
loss(params, inputs, {train = false, rng, ignore_index = -100, label_smoothing = 0}) -> loss, count
The mean cross-entropy of inputs.labels, which the collate_fn has shifted (not for encoder-decoders),
and their number, without holding all logits.]],

  ["Model.generate"] = [[
generate(params, inputs, {max_length, max_new_tokens, min_length = 0, min_new_tokens,
  do_sample = false, temperature = 1, top_k = 50, top_p = 1, min_p, typical_p = 1, epsilon_cutoff = 0,
  eta_cutoff = 0, seed, rng, repetition_penalty = 1, encoder_repetition_penalty = 1,
  no_repeat_ngram_size = 0, encoder_no_repeat_ngram_size = 0, sequence_bias, bad_words_ids,
  suppress_tokens, begin_suppress_tokens, remove_invalid_values = false, renormalize_logits = false,
  exponential_decay_length_penalty, num_beams = 1, length_penalty = 1,
  early_stopping: boolean or string = false, num_return_sequences = 1, eos_token_id, pad_token_id,
  bos_token_id, decoder_start_token_id, forced_bos_token_id, forced_eos_token_id, stop_strings,
  tokenizer, streamer}) -> sequences [rows, length], scores [rows] (beam search)
Tokens after a prompt. inputs are those of the model; prompts may be padded on either side, and come
back padded on the left. Arguments have the names and meanings of transformers 4.57, and
generation_config.json of the model's folder comes before these defaults. Greedy and beam search give
the tokens that transformers gives. Other options of transformers are refused, in the call and in the
file, unless their value has no effect. On several processes all must call it, with the same
arguments.

Without inputs.attention_mask, tokens that equal pad_token_id are padding, unless it is an end token
too. inputs.decoder_input_ids get decoder_start_token_id as their first token, if no row has it.

  max_length: with the prompt; by default, up to 20 new tokens
  max_new_tokens, min_new_tokens: without the prompt, instead of max_length and min_length
  sequence_bias: a list of {tokens, number}; the number is added to the score of the last token of
    `tokens` after the others
  bad_words_ids: a list of lists of tokens
  exponential_decay_length_penalty: {start, factor}
  seed, rng: what sampling draws from
  early_stopping: false, true or "never"
  num_return_sequences: rows of one prompt lie side by side
  stop_strings: with tokenizer: a row ends when its text has one of them
  streamer: called after each step with the new tokens [rows], and which rows were still open]],

  ["Model.encode"] = [[
encode(params, inputs, {train = false, rng}) -> hidden_states [batch, length, size]
What the encoder makes of its inputs, for inputs.encoder_hidden_states. Encoder-decoders alone.]],

  ["Model.decoder_input_ids"] = [[
decoder_input_ids(labels [batch, length]) -> ids [batch, length]
The labels after the start token, with padding for -100. Encoder-decoders alone.]],

  ["Model.hidden_states"] = [[
hidden_states(params, inputs, {train = false, rng, cache}) -> hidden_states [batch, length, size]
What the head sees.]],

  ["Model.logits"] = [[
logits(params, hidden_states [batch, length, size]) -> logits [batch, length, vocab_size]
What the head makes of the hidden states.]],

  ["Model.save_pretrained"] = [[
save_pretrained(dir, {params = model.params, max_shard_size = "5GB"})
Writes the folder that `redco.models.from_pretrained` and Hugging Face's library read; every process
must call it.]],
}

-- Each model has functions of its own; their names are known before there is one.
for name, text in pairs(texts) do registry.define(name, text) end

--- Says of a new model's functions what they are.
return function(model)
  for name, text in pairs(texts) do
    local own = rawget(model, name:match "[^.:]+$")
    if own then registry.define(name, text, own) end
  end
end
