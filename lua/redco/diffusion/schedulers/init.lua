--- Schedulers by the names of diffusers' classes.
local config = require "redco.diffusion.schedulers.config"
local fail = require "redco.fail"
local hub = require "redco.hub"
local native = require "redco.native"
local new_scheduler = require "redco.diffusion.schedulers.scheduler"
local registry = require "redco.registry"

local files = {
  DDIMScheduler = "ddim", DDPMScheduler = "ddpm",
  DPMSolverMultistepScheduler = "dpmsolver_multistep", EulerDiscreteScheduler = "euler",
  EulerAncestralDiscreteScheduler = "euler_ancestral",
  FlowMatchEulerDiscreteScheduler = "flow_match_euler", HeunDiscreteScheduler = "heun",
  LMSDiscreteScheduler = "lms", PNDMScheduler = "pndm", UniPCMultistepScheduler = "unipc",
}

return registry.define("redco.diffusion.scheduler", [[
scheduler(config: string or table) -> Scheduler
Returns a scheduler from a folder with a scheduler_config.json, or from a table with its keys. Its
`_class_name` is DDPMScheduler, DDIMScheduler, PNDMScheduler, DPMSolverMultistepScheduler,
EulerDiscreteScheduler, EulerAncestralDiscreteScheduler, HeunDiscreteScheduler,
LMSDiscreteScheduler, UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler; other keys have
diffusers' defaults. Keys that only other classes have are ignored, as by diffusers; unknown keys, and
values that are not supported, raise an error with their name.]], function(given)
  local where = "diffusion.scheduler"
  if type(given) == "string" then
    where = hub.path(where, given, "scheduler") .. "/scheduler_config.json"
    given = config.read(where)
  end
  if type(given) ~= "table" then
    fail("%s: expected a folder or a table, got %s", where, native.describe(given))
  end
  local name, c = config.complete(where, given)
  return new_scheduler(require("redco.diffusion.schedulers." .. files[name]), name, c)
end)
