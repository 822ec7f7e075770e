"""Schedulers take the steps of diffusers, with random configurations.

schedulers_peer.py REDCO_LUA [SEED [COUNT]]
"""
import json
import random
import subprocess
import sys
import tempfile
import warnings

import diffusers
import torch

program, *rest = sys.argv[1:]
seed = int(rest[0]) if rest else 1
count = int(rest[1]) if len(rest) > 1 else 60
rng = random.Random(seed)
torch.manual_seed(seed)
warnings.simplefilter("ignore")
diffusers.utils.logging.set_verbosity_error()

BETAS = [{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"},
         {"beta_schedule": "linear"}, {"beta_schedule": "squaredcos_cap_v2"}]
COMMON = {"num_train_timesteps": [1000, 1000, 400], "prediction_type": ["epsilon", "v_prediction"],
          "timestep_spacing": ["linspace", "leading", "trailing"], "steps_offset": [0, 1]}
ZERO_SNR = {"rescale_betas_zero_snr": [False, False, True]}
LIMITS = {"thresholding": [False, False, True], "sample_max_value": [1.5],
          "dynamic_thresholding_ratio": [0.9]}
SPACING = {"sigmas": [None, None, "use_karras_sigmas", "use_exponential_sigmas"]}
FLOW = {"use_flow_sigmas": [False, False, False, True], "flow_shift": [3.0]}
OPTIONS = {
    "DDPMScheduler": {**COMMON, **ZERO_SNR, **LIMITS, "clip_sample": [False, True],
                      "variance_type": ["fixed_small", "fixed_small_log", "fixed_large",
                                        "learned", "learned_range"],
                      "prediction_type": ["epsilon", "v_prediction", "sample"]},
    "DDIMScheduler": {**COMMON, **ZERO_SNR, **LIMITS, "clip_sample": [False, True],
                      "set_alpha_to_one": [False, True],
                      "prediction_type": ["epsilon", "v_prediction", "sample"]},
    "PNDMScheduler": {**COMMON, "skip_prk_steps": [False, True], "set_alpha_to_one": [False, True]},
    "DPMSolverMultistepScheduler": {
        **COMMON, **ZERO_SNR, **LIMITS, **FLOW, "solver_order": [1, 2, 3],
        "sigmas": [None, None, "use_karras_sigmas", "use_exponential_sigmas", "use_lu_lambdas"],
        "algorithm_type": ["dpmsolver++", "dpmsolver", "sde-dpmsolver++", "sde-dpmsolver"],
        "solver_type": ["midpoint", "heun"], "lower_order_final": [True, False],
        "euler_at_final": [True, False], "final_sigmas_type": ["zero", "sigma_min"],
        "lambda_min_clipped": [-5.1, -1e9]},
    "EulerDiscreteScheduler": {
        **COMMON, **ZERO_SNR, **SPACING, "interpolation_type": ["linear", "linear", "log_linear"],
        "timestep_type": ["discrete", "continuous"], "final_sigmas_type": ["zero", "sigma_min"],
        "sigma_min": [None, 0.1], "sigma_max": [None, 10.0]},
    "EulerAncestralDiscreteScheduler": {**COMMON, **ZERO_SNR},
    "HeunDiscreteScheduler": {**COMMON, **SPACING, "clip_sample": [False, True]},
    "LMSDiscreteScheduler": {**COMMON, **SPACING},
    "UniPCMultistepScheduler": {
        **COMMON, **ZERO_SNR, **LIMITS, **SPACING, **FLOW, "solver_order": [1, 2, 3],
        "solver_type": ["bh1", "bh2"], "predict_x0": [True, False],
        "disable_corrector": [[], [0, 2]], "final_sigmas_type": ["zero", "sigma_min"]},
    "FlowMatchEulerDiscreteScheduler": {
        "shift": [1.0, 3.0], "use_dynamic_shifting": [False, True], "invert_sigmas": [False, True],
        "shift_terminal": [None, 0.1], "time_shift_type": ["exponential", "linear"]},
}


def random_config(name):
    config = {key: rng.choice(values) for key, values in OPTIONS[name].items()}
    if name != "FlowMatchEulerDiscreteScheduler":
        config.update(rng.choice(BETAS))
    spacing = config.pop("sigmas", None)
    if spacing:
        config[spacing] = True
        config.pop("use_flow_sigmas", None)
    if config.get("use_flow_sigmas"):
        config["prediction_type"] = "flow_prediction"
        key = "predict_x0" if name == "UniPCMultistepScheduler" else "algorithm_type"
        config[key] = {"predict_x0": True, "algorithm_type": "dpmsolver++"}[key]
    if name == "DPMSolverMultistepScheduler":
        if config["algorithm_type"] == "sde-dpmsolver" or config.get("use_flow_sigmas"):
            config["solver_order"] = min(2, config["solver_order"])
        if "++" not in config["algorithm_type"]:
            config["final_sigmas_type"] = "sigma_min"
    if name in ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler"):
        if config["timestep_spacing"] == "leading":
            config["steps_offset"] = 1  # else two sigmas may be equal
    return {key: value for key, value in config.items() if value is not None}


def tolerance(scheduler):
    """What diffusers' float32 leaves: its error grows with the largest ratio of noise to signal."""
    if not hasattr(scheduler, "alphas_cumprod"):
        return 3e-5
    share = max(float(scheduler.alphas_cumprod[-1]), 2 ** -24)
    return 3e-5 * max(1, ((1 - share) / share) ** 0.5 / 15)


def step_table(name):
    config, n = random_config(name), rng.choice([4, 5, 7, 10, 20])
    scheduler = getattr(diffusers, name)(**config)
    options = {"mu": 0.8} if config.get("use_dynamic_shifting") else {}
    scheduler.set_timesteps(n, **options)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    sample = torch.randn(2, 3, 2, dtype=torch.float64) * float(getattr(scheduler, "init_noise_sigma", 1))
    case = {"scheduler": name, "config": config, "steps": n, "start": sample.tolist(),
            "timesteps": scheduler.timesteps.tolist(), "mu": options.get("mu"),
            "init_noise_sigma": float(getattr(scheduler, "init_noise_sigma", 1)),
            "described": json.dumps(config), "rows": [], "tolerance": tolerance(scheduler)}
    for t in scheduler.timesteps:
        row = {}
        if hasattr(scheduler, "scale_model_input"):
            row["scaled_model_input"] = scheduler.scale_model_input(sample, t).tolist()
        channels = 6 if "learned" in config.get("variance_type", "") else 3
        output = torch.randn(2, channels, 2, dtype=torch.float64)
        noise = torch.randn(2, 3, 2, dtype=torch.float64)
        row["model_output"] = output.tolist()
        arguments = {}
        if name in ("DDIMScheduler", "DPMSolverMultistepScheduler"):
            arguments["variance_noise"] = noise
            row["noise"] = noise.tolist()
        if name == "DDIMScheduler":
            row["eta"] = arguments["eta"] = 0.4
        if name in ("DDPMScheduler", "EulerAncestralDiscreteScheduler"):
            module = sys.modules[type(scheduler).__module__]
            module.randn_tensor = lambda *_, **__: noise
            row["noise"] = noise.tolist()
        result = scheduler.step(output, t, sample, **arguments)
        sample = result.prev_sample.double()
        row["prev_sample"] = sample.tolist()
        if getattr(result, "pred_original_sample", None) is not None:
            row["pred_original_sample"] = result.pred_original_sample.tolist()
        case["rows"].append(row)
    return case


def is_finite(case):
    return all(torch.tensor(row["prev_sample"]).abs().max() < 1e6 for row in case["rows"])


cases = []
names = list(OPTIONS)
while len(cases) < count:
    case = step_table(names[len(cases) % len(names)])
    if not is_finite(case):
        continue
    cases.append(case)

with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    json.dump(cases, file)
    file.flush()
    sys.exit(subprocess.run([program, "schedulers.lua", file.name]).returncode)
