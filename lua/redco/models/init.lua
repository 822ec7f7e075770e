--- Model families in Lua, by their Hugging Face names.
return { gpt2 = require "redco.models.gpt2" }
