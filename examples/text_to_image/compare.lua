-- Shows what DreamBooth changed: two models paint each prompt from the same noise, and the script
-- compares their pictures with a given one.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  before = "workdir/model",  -- two pipelines' folders
  after = "dreambooth/model",
  picture = "",
  prompts = "sks emoji; emoji",  -- separated by semicolons
  n_pictures = 8,  -- of each prompt
  num_inference_steps = 25,
  guidance_scale = 3.0,
  seed = 1,
  out = "compared.png",  -- a row for each prompt and model, behind the picture
}

local models = {}
for i, dir in ipairs { o.before, o.after } do models[i] = redco.diffusion.from_pretrained(dir) end
local edge = models[1].vae.config.sample_size
local picture = redco.data.image_processor {
  do_resize = true, size = { shortest_edge = edge }, resample = 2, do_center_crop = true,
  crop_size = { height = edge, width = edge }, do_normalize = false,
} { redco.data.image(o.picture) }

print "root mean square distance of the pixels, from 0 to 1\n\nbefore   after   prompt"
local rows = {}
for prompt in o.prompts:gmatch "[^;]+" do
  prompt = prompt:match "^%s*(.-)%s*$"
  local distances = {}
  for i, pipeline in ipairs(models) do
    local images = pipeline(prompt, { num_images_per_prompt = o.n_pictures, seed = o.seed,
      num_inference_steps = o.num_inference_steps, guidance_scale = o.guidance_scale })
    distances[i] = (images - picture):square():mean({ 1, 2, 3 }):sqrt():mean():item()
    rows[#rows + 1] = torch.cat({ picture, images }, 0)
  end
  print(("%6.3f  %6.3f   %s"):format(distances[1], distances[2], prompt))
end
redco.data.save_image(redco.data.make_grid(torch.cat(rows, 0),
  { nrow = o.n_pictures + 1, pad_value = 1 }), o.out)
