--- The help texts of a model's functions, by name. Each begins with the signature.
local registry = require "redco.registry"

local texts = {
  ["Model"] = [[
Model {params, config: table, generation_config: table, is_encoder_decoder: boolean,
  is_decoder: boolean, new_parameters: list of strings}
A model: a function of parameters and inputs, with a loss, generation and a folder. Call its other
functions with a dot: `model.loss(params, batch)`. Made by `redco.models.from_pretrained`,
`redco.models.from_config` and `redco.models.from_encoder_decoder_pretrained`.
  params: a flat table of parameters, with Hugging Face's names
  config: the complete configuration, with Hugging Face's keys
  generation_config: the contents of generation_config.json of its folder
  is_decoder: whether labels are the next tokens
  new_parameters: the names of the parameters that its folder lacks, which are new]],

  ["Model:__call"] = [[
__call(self, params, inputs, {train = false, rng = nil, cache = nil, pooling: string = nil}) -> logits [batch, length, vocab_size]
Computes logits. An input that the family does not read is an error that lists those that it reads;
all may be given `labels`.

Decoders take inputs.input_ids [batch, length] and optionally attention_mask (1 for tokens, 0 for
padding) and position_ids. Rows of several sequences need segment_ids and position_ids, as from
`redco.data.pack`: each sequence attends only to itself. Their numbers differ; 0 is padding. Encoders take the same, and token_type_ids
where they have them. Heads with one output for a whole row, and DeBERTa's convolution, refuse
segment_ids.

In encoder-decoders, input_ids (or pixel_values [batch, channels, height, width], or input_features
[batch, mels, frames]) and attention_mask are the encoder's. The default decoder_input_ids are made from inputs.labels by
`Model.decoder_input_ids`; decoder_attention_mask marks their padding. encoder_hidden_states, the
result of `Model.encode`, saves running the encoder.

Image classifiers take pixel_values and labels [batch] and return logits [batch, num_labels].
Classifiers of sequences do so from input_ids, those of tokens return [batch, length, num_labels].
Question answering takes start_positions and end_positions [batch] instead of labels and returns
[batch, length, 2].

CLIP and SigLIP take input_ids of texts and pixel_values of images, not necessarily as many, and
return logits [images, texts]. CLAP takes input_features of sounds in place of images. Their parts
alone, and a ViT without a classifier, return features [batch, size].

SAM 2 takes pixel_values [batch, 3, height, width] and what is meant in pixels of these images:
input_points [batch, objects, points, 2], columns and rows, with input_labels [batch, objects,
points] (1 for the object, 0 for what it is not, -1 for no point, -10 for padding); input_boxes
[batch, objects, 4], {left, upper, right, lower}; input_masks [batch, 1, rows, columns]. It returns
masks [batch, objects, n, rows, columns], which are above 0 where the object is, their scores [batch,
objects, n], and logits of there being an object [batch, objects, 1]. With inputs.multimask_output =
false n is 1. inputs.image_embeddings, the result of `Model.get_image_embeddings`, save reading the
images again.

Text models without a head (the task "features") return hidden states [batch, length, size], or with
`pooling` one vector for each text, [batch, size].
  cache: from `redco.models.new_cache`; the inputs are then only the new tokens
  pooling: "mean" of the tokens, "cls" and "last", the first and the last token that is no padding,
    or "pooler", of BERT and its kin, the layer behind the first position, as transformers'
    pooler_output]],

  ["Model.loss"] = [[
loss(params, inputs, {train = false, rng = nil, ignore_index = -100, label_smoothing = 0, shift = false}) -> loss, count, metrics
Returns the mean cross-entropy of inputs.labels and the number of labels, without holding all
logits. For decoders the label of a token is the next token. With shift = true, labels are aligned
with input_ids, `labels = input_ids`, and shifted here, as in transformers; labels of padding (by
attention_mask), of what follows padding and of the next sequence of a row (by segment_ids) do not
count. Labels of encoder-decoders are not shifted.
Classifiers of sequences and images have the loss of the configuration's problem_type. CLIP and
SigLIP have their contrastive loss of all pairs in the batch, where image i belongs to text i; it
takes no ignore_index and label_smoothing, and the count is the number of pairs. Mixtures of experts
also return metrics, which a Trainer logs with each step: expert_load_max and expert_load_min, the
most and the fewest tokens that an expert of a layer gets as multiples of the mean, and router_loss
if the configuration has output_router_logits.]],

  ["Model.loss_fn"] = [[
loss_fn(rng, state: table, params, inputs, is_training: boolean) -> loss, count, metrics
Calls `Model.loss` with the arguments that a Trainer passes: `redco.Trainer {loss_fn =
model.loss_fn, ...}`.]],

  ["Model.generate"] = [[
generate(params, inputs, {max_length = nil, max_new_tokens = nil, min_length = 0,
  min_new_tokens = nil, do_sample = false, temperature = 1, top_k = 50, top_p = 1, min_p = nil,
  typical_p = 1, epsilon_cutoff = 0, eta_cutoff = 0, seed = nil, rng = nil, repetition_penalty = 1,
  frequency_penalty = 0, presence_penalty = 0, encoder_repetition_penalty = 1, no_repeat_ngram_size = 0, encoder_no_repeat_ngram_size = 0,
  sequence_bias = nil, bad_words_ids = nil, suppress_tokens = nil, begin_suppress_tokens = nil,
  remove_invalid_values = false, renormalize_logits = false,
  exponential_decay_length_penalty = nil, num_beams = 1, length_penalty = 1,
  early_stopping: boolean or string = false, num_return_sequences = 1, eos_token_id = nil, pad_token_id = nil,
  bos_token_id = nil, decoder_start_token_id = nil, forced_bos_token_id = nil,
  forced_eos_token_id = nil, stop_strings = nil, tokenizer = nil, streamer = nil, cache = nil,
  cache_implementation: string = "dynamic", logits_processor: function or list of functions = nil,
  language: string or list of strings = nil, task = nil, return_timestamps = nil}) -> sequences [rows, length], scores [rows] (beam search)
Generates tokens after a prompt. inputs are those of the model. Prompts may be padded on either side
and are returned padded on the left.

Arguments have the names and meanings of transformers 4.57; frequency_penalty and presence_penalty
are those of the OpenAI API. Values in generation_config.json of the
model's folder replace these defaults. Greedy search and beam search return the same tokens as
transformers. Other options of transformers raise an error, in the call and in the file, unless
their value has no effect. All processes must make the call, with the same arguments.

Without inputs.attention_mask, tokens equal to pad_token_id are padding, unless it is also an end
token. inputs.decoder_input_ids get decoder_start_token_id as their first token, unless a row
already has it.

Whisper, without inputs.decoder_input_ids, begins with the tokens of `language` ("en", "english"; a
list has one for each row) and `task` ("transcribe" or "translate"). Without a language it finds out
which. `return_timestamps` makes it write times. inputs.input_features may have any number of frames:
more than those of 30 seconds are read window after window, which needs times, and for several rows
inputs.attention_mask. As in transformers, the sequences have neither the prompt nor the end token,
and `temperature` means sampling. The second result is then a list of segments for each row, {start,
end, tokens} in seconds.

Models of sound with a task `ctc` return the most probable token or blank (pad_token_id) of each
frame [batch, frames], with blanks on padding, and have no options: `redco.data.ctc_tokenizer`
decodes a row.

  max_length: includes the prompt; by default, at most 20 new tokens
  max_new_tokens, min_new_tokens: limits of the new tokens alone; max_length and min_length count the
    prompt too, and are ignored if these are given
  sequence_bias: a list of {tokens, number}; the number is added to the score of the last token of
    `tokens` if the row ends in the others
  bad_words_ids: a list of lists of tokens
  logits_processor: a function(ids [rows, length], scores [rows, vocab_size], facts) that returns the
    scores of the next tokens, or a list of functions. They run before temperature and what
    else belongs to sampling. `facts` has prompt_length, how many columns of ids are the prompt, and
    eos_token_id, a list. `redco.models.json_logits_processor` makes one for JSON
  exponential_decay_length_penalty: {start, factor}
  seed, rng: the source of random numbers for sampling
  early_stopping: false, true or "never"
  num_return_sequences: the rows of one prompt are adjacent
  stop_strings: needs `tokenizer`; a row ends with the token that completes one of them
  streamer: called after each step with the new tokens [rows] and which rows were still
    unfinished; needs num_beams = 1
  cache: a cache of `redco.models.new_cache`, for a decoder with one row. Its tokens are the first of
    input_ids, and only the others are read. Afterwards it has all tokens but the last
  cache_implementation: "dynamic", or "static": the cache has max_length tokens from the start, and
    all steps are alike. One GPU then captures a step as a CUDA graph and replays it, which is
    faster with small batches; several processes and CPUs gain nothing. Models whose layers need
    the length of the text, as T5, raise an error. It is an option of the call alone]],

  ["Model.encode"] = [[
encode(params, inputs, {train = false, rng = nil}) -> hidden_states [batch, length, size]
Returns the encoder's output, for inputs.encoder_hidden_states. Only for encoder-decoders.]],

  ["Model.decoder_input_ids"] = [[
decoder_input_ids(labels [batch, length]) -> ids [batch, length]
Returns the labels shifted right behind the start token, with padding in place of -100. Only for
encoder-decoders.]],

  ["Model.hidden_states"] = [[
hidden_states(params, inputs, {train = false, rng = nil, cache = nil}) -> hidden_states [batch, length, size]
Returns the output of the last layer, behind the last norm: transformers' last_hidden_state. It is
the same with any head. Encoder-decoders return that of the decoder, and without
inputs.decoder_input_ids and inputs.labels that of the encoder. Of mixtures of experts the second
result is a list of the routers' logits. Parts of CLIP and SigLIP and ViTs without a head also return
a list: the input of the first layer, and the output of each layer before the last norm. CLIP and
SigLIP return those of inputs.input_ids if there are some, else those of inputs.pixel_values; CLAP
those of inputs.input_features.]],

  ["Model.get_text_features"] = [[
get_text_features(params, inputs, {train = false, rng = nil}) -> features [batch, size]
Returns the features of inputs.input_ids as CLIP and SigLIP compare them with those of images,
before they are divided by their lengths, and as CLAP compares them with those of sounds, behind that
division, as in transformers. Only for these.]],

  ["Model.get_image_features"] = [[
get_image_features(params, inputs, {train = false, rng = nil}) -> features [batch, size]
Returns the features of inputs.pixel_values, as `Model.get_text_features` does those of texts.]],

  ["Model.get_image_embeddings"] = [[
get_image_embeddings(params, inputs, {train = false, rng = nil}) -> list of Tensors
Returns what SAM 2's decoder reads of inputs.pixel_values, for inputs.image_embeddings: three images
of features [batch, channels, rows, columns], the largest first. Only for SAM 2.]],

  ["Model.get_audio_features"] = [[
get_audio_features(params, inputs, {train = false, rng = nil}) -> features [batch, size]
Returns the features of inputs.input_features and, if the model fuses them, inputs.is_longer, as
CLAP compares them with those of texts. Only for CLAP.]],

  ["Model.logprobs"] = [[
logprobs(params, inputs, {train = false, rng = nil, ignore_index = -100, shift = false,
  temperature: number = 1, entropy: boolean = false,
  hidden_states: boolean = false}) -> logprobs [batch, length], labels [batch, length], entropies [batch, length] or nil, hidden_states [batch, length, size] or nil
Returns the log-probability of each of inputs.labels, 0 for those equal to ignore_index, without
holding all logits. The second result is the labels that belong to them. Labels and `shift` are as in
`Model.loss`. Only for models that predict tokens.
  temperature: divides the logits
  entropy: also returns the entropies of the distributions of the next tokens, without gradient
  hidden_states: also returns the input of the head, for a second head: one that estimates values]],

  ["Model.logits"] = [[
logits(params, hidden_states [batch, length, size], inputs = nil, {train = false, rng = nil}) -> logits [batch, length, vocab_size]
Applies the head to hidden states. Classifiers of sequences and multiple choice need the inputs of
the hidden states, in which they find the tokens that they read.]],

  ["Model.resize_token_embeddings"] = [[
resize_token_embeddings(new_num_tokens: integer = nil, {pad_to_multiple_of: integer = nil,
  mean_resizing = true, generator = nil, params = model.params}) -> params
Gives the embeddings, and an untied head and its bias, a row for each of `new_num_tokens` tokens, as
after `Tokenizer:add_tokens`: new rows at the end, or fewer rows. Changes `params` and
model.config.vocab_size in place and returns `params`. Call it on all processes, before
`redco.lora.add` and before the parameters are given to a Trainer; a Trainer made earlier keeps its
own, so make a new one.
  mean_resizing: new rows are drawn around the mean of the old ones with 1e-9 of their covariance,
    else as in a new model
  pad_to_multiple_of: rounds the number of rows up
  generator: of the new rows]],

  ["Model.save_pretrained"] = [[
save_pretrained(dir, {params = model.params, max_shard_size = "5GB"})
Writes a folder that `redco.models.from_pretrained` and Hugging Face's libraries read. Every process
must call it.]],

  ["Model.save_gguf"] = [[
save_gguf(path, {type: string = nil, params = model.params, tokenizer = nil, importance: table = nil,
  name: string = nil})
Writes a file that llama.cpp opens, `model.gguf`, of the architectures that
`redco.models.from_pretrained` reads from such files. A setting that such files cannot have is an
error. An earlier file of this name stays until the new one is complete. Every process must call it;
the first one writes, a tensor at a time.
  type: "f32", "f16", "bf16", "q8_0", "q4_0", "q6_k", or "q4_k_m" and "q5_k_m", which have more bits
    for the weights that need them, as llama-quantize chooses them. By default, that of each parameter.
    Norms and biases are float32; weights that are quantized to the same type already stay as they are
  tokenizer: by default that of the folder or file that the model is from; false for none
  importance: the mean squares of the inputs of layers, from `redco.quant.importance`
  name: of the model, by default that of its folder]],

  ["Model.set_sentence_pooling"] = [[
set_sentence_pooling({pooling = "mean", normalize = true, prompts: table = {},
  default_prompt_name: string = nil, max_seq_length: integer = nil})
Makes a sentence encoder of a text model without a head (the task "features"): calls return one vector
for each text, and `save_pretrained` also writes the files of sentence-transformers. What it sets, or
`redco.models.from_pretrained` has read, is `model.sentence_pooling` {prompts, default_prompt_name,
max_seq_length, ...}.
  pooling: "mean", "cls", "last", "max", "mean_sqrt_len_tokens" or "weightedmean"
  normalize: whether vectors have length 1, behind the layers (Dense) that the folder has
  prompts: texts by name, such as {query = "query: "}, that stand before a text. The caller adds them
  max_seq_length: of texts, in tokens; the caller truncates them]],
}

-- Each model has its own closures, but their texts are defined before there is a model.
for name, text in pairs(texts) do registry.define(name, text) end

--- Attaches the texts to the functions of a new model.
return function(model)
  for name, text in pairs(texts) do
    local own = rawget(model, name:match "[^.:]+$")
    if own then registry.define(name, text, own) end
  end
end
