--- The sections of the documentation about words that are no names of the reference, or whose names
--- say little.
local topics = {}

--- Each is {page, heading, words}.
topics.list = {
  { "runs", "Options and the work folder", "curves metrics options plot workdir" },
  { "runs", "Looking at runs with other programs", "mlflow tensorboard wandb" },
  { "runs", "Checkpoints", "checkpoint checkpoints ckpt ckpts resume resuming" },
  { "runs", "Several processes", "nproc processes" },
  { "hosts", "Start", "cluster hosts machines slurm torchrun" },
  { "hosts", "The secret of a run", "secret" },
  { "hosts", "Failures", "failure failures restart restarts" },
  { "hosts", "Signals and exit codes", "signal signals" },
  { "parallelism", "Choice", "layout parallelism shards sharding zero" },
  { "planning", "An example", "plan planning" },
  { "models", "Adapters", "adapter adapters peft" },
  { "models", "GGUF files", "gguf" },
  { "conversations", "Tokenizers and new tokens", "tokenizers" },
  { "troubleshooting", "Memory", "memory" },
  { "troubleshooting", "Environment variables", "environment variables" },
}

--- Returns a line that names the sections about the words of a query, or nil.
function topics.line(query)
  local found = {}
  for _, topic in ipairs(topics.list) do
    for word in query:lower():gmatch "%w+" do
      if (" " .. topic[3] .. " "):find(" " .. word .. " ", 1, true) then
        found[#found + 1] = ('docs/%s.md, "%s"'):format(topic[1], topic[2])
        break
      end
    end
  end
  return found[1] and "In the documentation: " .. table.concat(found, "; ") .. "." or nil
end

return topics
