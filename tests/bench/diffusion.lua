-- A training step of a UNet with AdamW and clipped gradients, and steps of DDIM with guidance, in
-- examples and pictures a second beside diffusers on the same folder, in interleaved runs. Both
-- compute the same loss and picture. One JSON line. --python= names one with diffusers. Seconds
-- are of the processor, so that a busy machine changes them less: keep --threads=1. With
-- --alone=train or --alone=sample only that is done, three times, and the peak of memory is its
-- own; with --keep= the folder stays for the peer's fourth argument.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options { python = "python3", model = "small", runs = 7, threads = 1, alone = "",
  keep = "", steps = 20 }
torch.set_num_threads(o.threads)

local down, up = {}, {}
for i, has_text in ipairs { true, true, false } do
  down[i] = has_text and "CrossAttnDownBlock2D" or "DownBlock2D"
  up[4 - i] = has_text and "CrossAttnUpBlock2D" or "UpBlock2D"
end
-- By name: channels, layers of a block, side of latents, batch, size and length of texts.
local shapes = {
  tiny = { { 32, 64 }, 1, 16, 16, 64, 16 },
  small = { { 64, 128, 256 }, 2, 32, 4, 256, 77 },
}
local channels, layers, side, batch_size, text_size, length = unpack(shapes[o.model])
while #down > #channels do table.remove(down, 2) table.remove(up, 2) end

local tests = redco.script_folder() .. "../cases/stable_diffusion"
local rng = redco.Rng(0)
local tokenizer = redco.diffusion.from_pretrained(tests).tokenizer
local pipeline = redco.diffusion.pipeline {
  tokenizer = tokenizer,
  text_encoder = redco.models.from_config({ model_type = "clip_text_model",
    vocab_size = #tokenizer, hidden_size = text_size, intermediate_size = 4 * text_size,
    num_hidden_layers = 2, num_attention_heads = 4, max_position_embeddings = length,
    eos_token_id = tokenizer.eos_token_id }, { task = "features", generator = rng }),
  vae = redco.diffusion.from_config({ _class_name = "AutoencoderKL", norm_num_groups = 8,
    block_out_channels = { 16, 32 }, sample_size = 2 * side,
    down_block_types = { "DownEncoderBlock2D", "DownEncoderBlock2D" },
    up_block_types = { "UpDecoderBlock2D", "UpDecoderBlock2D" } }, { generator = rng }),
  unet = redco.diffusion.from_config({ _class_name = "UNet2DConditionModel", sample_size = side,
    block_out_channels = channels, layers_per_block = layers, down_block_types = down,
    up_block_types = up, norm_num_groups = 8, attention_head_dim = 4,
    cross_attention_dim = text_size }, { generator = rng }),
  scheduler = { _class_name = "DDIMScheduler", clip_sample = false, set_alpha_to_one = false },
}

local new = { generator = rng }
local batch = { latents = torch.randn({ batch_size, 4, side, side }, new),
  noise = torch.randn({ batch_size, 4, side, side }, new),
  timesteps = torch.randint(0, 1000, { batch_size }, new),
  encoder_hidden_states = torch.randn({ batch_size, length, text_size }, new) }
local prompts = pipeline.tokenize { "a taxi", "bone" }
local noise = torch.randn({ 2, 4, side, side }, new)

local losses = {}
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 0, verbose = false }, params = pipeline.params,
  collate_fn = function() return batch end,
  optimizer = redco.optim.freeze(redco.optim.chain { redco.optim.clip_by_global_norm(1),
    redco.optim.adamw { learning_rate = 1e-4 } }, { "vae.*", "text_encoder.*" }),
  loss_fn = function(_, _, p, some) return pipeline.loss(p, some) end,
}
local function train()
  local from = os.clock()
  losses[#losses + 1] = trainer:train_step { examples = { 1 }, per_device_batch_size = 1 }.loss
  return os.clock() - from
end
local function sample()
  local from = os.clock()
  local images = pipeline.generate(trainer.params, prompts,
    { latents = noise, seed = 0, num_inference_steps = o.steps, guidance_scale = 4 })
  return os.clock() - from, images
end

local ours = { train = train, sample = sample }
if o.alone ~= "" then
  for _ = 1, 3 do ours[o.alone]() end
  print(('{"name": "diffusion", "alone": "%s", "peak_rss_mb": %.0f}'):format(o.alone,
    clock.peak_rss_mb()))
  return
end

local folder = os.tmpname() .. ".d"
assert(os.execute(("mkdir -p %s && mkfifo %s/questions"):format(folder, folder)) == 0)
pipeline.save_pretrained(folder .. "/model")
torch.save({ batch = batch, prompts = prompts, noise = noise,
  empty = pipeline.tokenize { "", "" } }, folder .. "/start.safetensors")
local answers = assert(io.popen(("%s tests/bench/peer_diffusion.py %s %d %d < %s/questions"):format(
  o.python, folder, o.threads, o.steps, folder)))
local ask = assert(io.open(folder .. "/questions", "w"))
-- The peer answers a line with the seconds, and the loss or the sum of the picture.
local function theirs(what)
  ask:write(what .. "\n")
  ask:flush()
  return answers:read("*n", "*n")
end

local function check(name, actual, expected)
  assert(math.abs(actual - expected) < 1e-3 * math.abs(expected),
    ("%s is %g, the peer's %g"):format(name, actual, expected))
end

local _, images = sample()
check("the sum of the pictures", images:sum():item(), select(2, theirs "sample"))
train()
theirs "train"
local report = {}
for _, what in ipairs { "train", "sample" } do
  local mine, peers, ratios = {}, {}, {}
  for run = 1, o.runs do
    mine[run] = ours[what]()
    local result
    peers[run], result = theirs(what)
    ratios[run] = peers[run] / mine[run]
    if what == "train" then check("the loss", losses[#losses], result) end
  end
  local n = what == "train" and batch_size or 2
  report[#report + 1] = ('"%s_per_s": %.2f, "peer_%s_per_s": %.2f, "%s_ratio": %.2f'):format(what,
    n / clock.median(mine), what, n / clock.median(peers), what, clock.median(ratios))
end
print(('{"name": "diffusion", "model": "%s", %s}'):format(o.model, table.concat(report, ", ")))
ask:close()
answers:close()
if o.keep == "" then os.execute("rm -r " .. folder) else os.rename(folder, o.keep) end
