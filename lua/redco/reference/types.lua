--- The types of arguments, fields and results. A name has one meaning in the whole library, so most
--- signatures need no type. A type comes from the signature, else from the tables here, else from
--- the default.
local types = {}

--- The types of classes, by the `__name` in an object's metatable.
types.classes = {
  Cache = "redco.Cache", CheckSubject = "redco.CheckSubject", Dataset = "redco.Dataset",
  DecodeStream = "redco.DecodeStream",
  Deployer = "redco.Deployer", Distribution = "redco.Distribution", Event = "torch.cuda.Event",
  Environment = "redco.Environment", GenerationBatch = "redco.GenerationBatch",
  Generator = "torch.Generator", LanguageSampler = "redco.LanguageSampler",
  Model = "redco.Model", Pipeline = "redco.Pipeline",
  Optimizer = "redco.Optimizer", Predictor = "redco.Predictor",
  ReplayBuffer = "redco.ReplayBuffer", Schedule = "redco.Schedule",
  Scheduler = "redco.Scheduler", Server = "redco.Server",
  Component = "redco.Component", ScriptModule = "torch.ScriptModule", Tensor = "torch.Tensor",
  Tokenizer = "redco.Tokenizer",
  Trainer = "redco.Trainer",
}

local words_by_type = {
  any = "data value name_or_value dtype_or_device_or_tensor",
  boolean = [[allow_unused clean_up_tokenization_spaces copy create_graph
    decode_with_timestamps enabled fan_in_fan_out interleaved
    is_encoder_decoder non_blocking requires_grad retain_graph return_offsets_mapping
    return_timestamps]],
  integer = [[accumulate_grad_batches batch_size bos_token_id capacity char_order cls_token_id count
    decoder_start_token_id draws embed_dim embedding_dim encoder_no_repeat_ngram_size epoch_idx
    eval_every_k_steps every eval_per_device_batch_size first forced_bos_token_id global_batch_size
    groups hidden_size host0_port i id ignore_index in_channels in_features input_size keep_last_k_ckpts
    last length level mask_token_id max_length max_new_tokens max_steps min_length min_new_tokens
    micro_batch_size model_max_length n n_epochs n_context_shards n_expert_shards n_model_shards
    n_chunks_per_stage n_pipeline_stages n_processes new_freq no_repeat_ngram_size num_beams num_embeddings num_heads num_return_sequences num_workers number
    offset orig_freq out_channels out_dim out_dims out_features pad_to_multiple_of pad_token_id
    per_device_batch_size prefetch_factor process_id r sampling_rate save_ckpt_every_k_epochs
    save_ckpt_every_k_steps seed sep_token_id seq_len size step steps top_k total_steps train_size
    unk_token_id vocab_size warmup_steps word_order zero zero_min_size dim num_channels num_classes
    num_features num_groups num_samples padding_idx position max_episode_steps n_actions n_envs n_episodes
    observation_size n_devices max_model_shards n_layouts]],
  number = [[a b delta eps1 expected_batch_size init_value max_grad_norm max_norm max_seconds
    max_value min_p noise_multiplier p peak_value pos_label sample_rate scale softcap
    target_epsilon smooth_value param rate sparsity clip margin timeout]],
  string = [[base_model_name_or_path cluster bos_token chat_template ckpt_dir ckpt_name cls_token compute_dtype
    decoder_dir delimiter desc device dir dtype encoder_dir eos_token float_dtype folder full_name
    host0_address mask_token name nonlinearity pad_token padding_side path prediction randomness recompute save_float_dtype
    sep_token stem string task task_type text text_pair title truncation_side unk_token workdir]],
  table = [[config custom_state defaults early_stopping gradients info inputs last_ckpt_info loss_scale
     metadata metrics opt_state options
    outputs params profile report rules structure texts tree variables]],
  ["function"] = [[activation body collate_fn eval_metric_fn f forward get loss_fn
    logits_processor lr_schedule_fn on_epoch on_eval on_save on_step output_fn pred_fn streamer
    train_step_fn]],
  Tensor = [[actions advantages c cos features final_observations gradient h hidden_states k logits loss mask memory observations parameter pixels pos_weight probs q returns rewards
    samples scores segment_ids sin sinks target tensor terminated truncated v var weight x]],
  Dataset = "", Cache = "cache", Deployer = "deployer", Generator = "generator rng",
  Model = "model text_encoder text_encoder_2 text_encoder_3", Optimizer = "optimizer second",
  Predictor = "eval_predictor", Pipeline = "pipeline",
  Tokenizer = "tokenizer tokenizer_2 tokenizer_3",
  ["integer or list of integers"] = [[dilation eos_token_id forced_eos_token_id kernel_size
    normalized_shape output_size stride]],
  ["integer or boolean or list"] = "in_dims",
  ["integer or string or list of integers"] = "padding",
  ["integer or string or table"] = "cp dp dp_replicate ep mp pp",
  ["integer or string"] = "max_shard_size zero_group",
  ["string or function"] = "operator",
  ["string or list of strings or function"] = "frozen",
  ["number or function"] = "learning_rate",
  ["function or Model"] = "apply_fn",
  ["list of integers"] = "begin_suppress_tokens indices sizes suppress_tokens",
  ["list of integers or Tensor"] = "ids",
  ["list of numbers"] = "betas counts exponential_decay_length_penalty losses ratio",
  list = "bad_words_ids leaves sequence_bias",
  ["list of strings"] = [[modules_to_save rouge_types save_argmax_ckpt_by_metrics save_argmin_ckpt_by_metrics
    stop_strings target_parameters]],
  ["list of tables"] = "earlier messages params_sharding_rules",
  ["list or Dataset or Tensor"] = "eval_examples examples",
  ["list of Datasets"] = "sets",
  ["list or Dataset or Tensor or function"] = "train_examples",
  ["list or Dataset"] = "sequences set",
  ["list or Tensor"] = "predictions references tokens",
  ["list of strings or string"] = "reference target_modules",
  ["table or Tensor"] = "batch",
}

local by_word = {}
for type, words in pairs(words_by_type) do
  for word in words:gmatch "%S+" do by_word[word] = type end
end

local function of_default(default)
  if default == "true" or default == "false" then return "boolean" end
  if tonumber(default) then return "number" end
  if default:find '^"' then return "string" end
  if default:find "^{" then return "table" end
end

--- Returns the type of an argument or field of `signature.read` in words; nil if it is unknown.
function types.of_argument(argument)
  return argument.type or argument.shape and "Tensor" or by_word[argument.name]
    or argument.default and of_default(argument.default)
end

local primitives = {
  any = "any", boolean = "boolean", integer = "integer", number = "number", string = "string",
  table = "table", list = "any[]", ["function"] = "function", ["nil"] = "nil", tree = "table",
  value = "any", int64 = "integer", iterator = "function", ["nested tables"] = "table",
  ["FFI pointer"] = "ffi.cdata*", ["light userdata"] = "lightuserdata", ["..."] = "any",
}

-- Converts one alternative of a type in words.
local function one_annotation(words, class)
  local plain = words:gsub("%s*%b()$", ""):gsub("%s*%b[]$", "")
  if words:find "^[%w_]*%s?%[" or words:find "^like " then return types.classes.Tensor end
  if words:find "^function%(" then return "function" end
  if plain == "self" then return class end
  local element = plain:match "^list of (.*)s$"
  if element then
    element = one_annotation(element)
    return element and element .. "[]"
  end
  if words:find "^what " then return "any" end
  plain = plain:gsub("^(Dataset) of .*", "%1")
  local fields = words:match "^{(.*)}$"
  if fields then return "table" end
  return primitives[plain] or types.classes[plain]
end

--- Converts a type in words to the notation of the lua-language-server: "list of integers or nil"
--- to "integer[]|nil". Returns nil if a part is unknown. `class` is the type of `self`.
function types.annotation(words, class)
  if words:find "^function%(" then return "function" end
  local all = {}
  for alternative in (words:gsub(" or ", "\n") .. "\n"):gmatch "(.-)\n" do
    local name = alternative:match "^[%w_]+"
    local one = one_annotation(alternative, class)
      or by_word[name] and types.annotation(by_word[name], class)
    if not one then return nil end
    all[#all + 1] = one
  end
  return table.concat(all, "|")
end

return types
