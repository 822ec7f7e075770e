--- wav2vec 2.0 (Baevski et al., 2020), as Hugging Face's `Wav2Vec2ForCTC`,
--- `Wav2Vec2ForSequenceClassification` and `Wav2Vec2Model`.
local new_family = require "redco.models.kinds.wav2vec2_like"

return new_family {
  model_type = "wav2vec2", models = "wav2vec 2.0, XLS-R", class = "Wav2Vec2", prefix = "wav2vec2",
}
