"""Loops and optimizers as people write them, around small models."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

import shardlint
from support.everyday import Setups, adamw, score, stepped

everyday = Setups()


def network():
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))


def batch():
    return torch.randn(4, 6)


@everyday
def accumulation_of_gradients_with_clipping():
    model = network()
    optimizer = adamw(model)
    with shardlint.trace(model, optimizer) as trace:
        for number in range(4):
            (score(model(batch())) / 2).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def warm_up_from_zero():
    model = network()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
    target = stepped(model, optimizer, batch())
    optimizer.param_groups[0]["lr"] = 0.0
    del scheduler
    return target


@everyday
def warm_up_from_zero_before_the_first_step():
    model = network()
    optimizer = adamw(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
    return shardlint.Target(model=model, optimizer=optimizer)


@everyday
def one_cycle_after_a_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    target = stepped(model, optimizer, batch())
    scheduler.step()
    return target


@everyday
def cosine_at_its_end():
    model = network()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1)
    target = stepped(model, optimizer, batch())
    scheduler.step()
    return target


@everyday
def closure_as_lightning_steps():
    model = network()
    optimizer = adamw(model)
    data = batch()

    def closure():
        optimizer.zero_grad()
        loss = score(model(data))
        loss.backward()
        return loss

    with shardlint.trace(model, optimizer) as trace:
        optimizer.step(closure)
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def lbfgs_with_line_search():
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    data = batch()

    def closure():
        optimizer.zero_grad()
        loss = score(model(data))
        loss.backward()
        return loss

    with shardlint.trace(model, optimizer) as trace:
        optimizer.step(closure)
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation as its widely copied implementation has it."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        closure()
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()


@everyday
def sharpness_aware_minimisation():
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    data = batch()

    def closure():
        loss = score(model(data))
        loss.backward()
        return loss

    with shardlint.trace(model, optimizer) as trace:
        optimizer.step(closure)
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


def newton_schulz(g):
    x = g / (g.norm() + 1e-7)
    for _ in range(3):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                p.add_(newton_schulz(buffer), alpha=-group["lr"])


def two_optimizers(model, first, second):
    with shardlint.trace(model, [first, second]) as trace:
        score(model(batch())).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=[first, second], trace=trace)


@everyday
def muon_by_hand_with_adamw():
    model = network()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return two_optimizers(model, Muon(matrices), torch.optim.AdamW(vectors, lr=1e-3))


@everyday
def muon_of_torch_with_adamw():
    model = network()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return two_optimizers(model, torch.optim.Muon(matrices, lr=1e-3), torch.optim.AdamW(vectors, lr=1e-3))


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


@everyday
def adversarial_pair_with_two_optimizers():
    model = GAN()
    first = torch.optim.Adam(model.generator.parameters(), betas=(0.5, 0.999))
    second = torch.optim.Adam(model.discriminator.parameters(), betas=(0.5, 0.999))
    with shardlint.trace(model, [first, second]) as trace:
        fake = model.generator(torch.randn(4, 4))
        second.zero_grad()
        (score(model.discriminator(fake.detach())) + score(model.discriminator(batch()) - 1)).backward()
        second.step()
        first.zero_grad()
        score(model.discriminator(fake) - 1).backward()
        first.step()
    return shardlint.Target(model=model, optimizer=[first, second], trace=trace)


@everyday
def wasserstein_critic_with_gradient_penalty():
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    optimizer = torch.optim.Adam(critic.parameters())
    with shardlint.trace(critic, optimizer) as trace:
        data = batch().requires_grad_()
        out = critic(data)
        (slope,) = torch.autograd.grad(out.sum(), data, create_graph=True)
        (out.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return shardlint.Target(model=critic, optimizer=optimizer, trace=trace)


class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = network().eval().requires_grad_(False)
        self.student = nn.Linear(6, 3)

    def forward(self, x):
        with torch.no_grad():
            wanted = self.teacher(x)
        return F.mse_loss(self.student(x), wanted)


@everyday
def teacher_and_student():
    model = Distilled()
    return stepped(model, adamw(model.student), batch())


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.predictor = network(), nn.Linear(3, 3)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)
        return F.mse_loss(self.predictor(self.online(x)), self.target(x))


@everyday
def momentum_encoder():
    model = BYOL()
    return stepped(model, adamw(model), batch())


@everyday
def moving_average_beside_the_model():
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    target = stepped(model, adamw(model), batch())
    average.update_parameters(model)
    return target


@everyday
def averaged_model_alone():
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    return average


@everyday
def fused_adamw():
    model = network()
    return stepped(model, adamw(model, fused=True), batch())


@everyday
def foreach_adam_with_amsgrad():
    model = network()
    return stepped(model, torch.optim.Adam(model.parameters(), foreach=True, amsgrad=True), batch())


def with_optimizer(kind, **options):
    model = network()
    return stepped(model, kind(model.parameters(), **options), batch())


@everyday
def adagrad():
    return with_optimizer(torch.optim.Adagrad, lr=0.01)


@everyday
def adadelta():
    return with_optimizer(torch.optim.Adadelta)


@everyday
def adamax():
    return with_optimizer(torch.optim.Adamax)


@everyday
def nadam_and_radam_states():
    return with_optimizer(torch.optim.NAdam)


@everyday
def adafactor_of_torch():
    return with_optimizer(torch.optim.Adafactor)


@everyday
def adafactor_of_transformers():
    from transformers.optimization import Adafactor

    return with_optimizer(Adafactor, relative_step=True, warmup_init=True, scale_parameter=True)


@everyday
def averaged_sgd():
    return with_optimizer(torch.optim.ASGD)


@everyday
def resilient_propagation():
    return with_optimizer(torch.optim.Rprop)


@everyday
def tensor_learning_rate():
    return with_optimizer(torch.optim.AdamW, lr=torch.tensor(1e-3), foreach=False)


@everyday
def eight_bit_adam():
    import bitsandbytes as bnb

    model = nn.Linear(128, 64)
    return stepped(model, bnb.optim.AdamW8bit(model.parameters(), lr=1e-3, min_8bit_size=16), torch.randn(2, 128))


@everyday
def gradient_scaler_that_skips():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with shardlint.trace(model, optimizer) as trace:
        scaler.scale(score(model(batch()))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def autocast_to_bfloat16():
    model = network()
    optimizer = adamw(model)
    with shardlint.trace(model, optimizer) as trace:
        with torch.autocast("cpu", torch.bfloat16):
            loss = score(model(batch()))
        loss.backward()
        optimizer.step()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def main_copies_in_float32():
    model = network().to(torch.bfloat16)
    mains = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    for parameter, main in zip(model.parameters(), mains, strict=True):
        parameter.main_param = main
    optimizer = torch.optim.AdamW(mains, lr=1e-3)
    with shardlint.trace(model, optimizer) as trace:
        score(model(batch().bfloat16())).backward()
        for parameter, main in zip(model.parameters(), mains, strict=True):
            main.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for parameter, main in zip(model.parameters(), mains, strict=True):
                parameter.copy_(main)
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def loop_that_updates_by_hand():
    model = network()
    with shardlint.trace(model) as trace:
        score(model(batch())).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    return shardlint.Target(model=model, trace=trace)


@everyday
def optimizer_in_backward():
    model = network()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    every = list(optimizers.values())
    with shardlint.trace(model, every) as trace:
        score(model(batch())).backward()
    return shardlint.Target(model=model, optimizer=every, trace=trace)


@everyday
def resumed_from_its_own_state():
    model = network()
    first = adamw(model)
    score(model(batch())).backward()
    first.step()
    again = network()
    again.load_state_dict(model.state_dict())
    optimizer = adamw(again)
    optimizer.load_state_dict(first.state_dict())
    return stepped(again, optimizer, batch())


@everyday
def group_added_after_unfreezing():
    model = network()
    model[0].requires_grad_(False)
    optimizer = adamw(model)
    stepped(model, optimizer, batch())
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-4})
    return stepped(model, optimizer, batch())


@everyday
def compiled_eagerly():
    model = torch.compile(network(), backend="eager")
    return stepped(model, adamw(model), batch())


@everyday
def compiled_in_place():
    model = network()
    model.compile(backend="eager")
    return stepped(model, adamw(model), batch())


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.embed = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Tanh()) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@everyday
def checkpointed_without_reentry():
    model = Checkpointed(False)
    return stepped(model, adamw(model), batch())


@everyday
def checkpointed_with_reentry():
    model = Checkpointed(True)
    return stepped(model, adamw(model), batch())


@everyday
def checkpointed_by_wrappers():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    model = Checkpointed(False)
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, nn.Sequential))
    return stepped(model, adamw(model), batch())


@everyday
def pruned_by_magnitude():
    from torch.nn.utils import prune

    model = network()
    prune.l1_unstructured(model[0], "weight", amount=0.4)
    prune.random_structured(model[4], "weight", amount=0.3, dim=1)
    return stepped(model, adamw(model), batch())


@everyday
def pruned_for_good():
    from torch.nn.utils import prune

    model = network()
    prune.l1_unstructured(model[0], "weight", amount=0.9)
    prune.remove(model[0], "weight")
    return stepped(model, adamw(model), batch())


@everyday
def quantised_dynamically():
    return torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}, dtype=torch.qint8)


@everyday
def prepared_for_training_with_quantisation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.fc = torch.ao.quantization.QuantStub(), nn.Linear(6, 3)
            self.dequant = torch.ao.quantization.DeQuantStub()

        def forward(self, x):
            return self.dequant(self.fc(self.quant(x)))

    model = Net().train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    torch.ao.quantization.prepare_qat(model, inplace=True)
    return stepped(model, adamw(model), batch())


@everyday
def spectral_norm_by_parametrization():
    model = network()
    nn.utils.parametrizations.spectral_norm(model[0])
    return stepped(model, adamw(model), batch())


@everyday
def weight_norm_by_parametrization():
    model = network()
    nn.utils.parametrizations.weight_norm(model[0])
    return stepped(model, adamw(model), batch())


@everyday
def weight_norm_by_hooks():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)), nn.utils.spectral_norm(nn.Linear(4, 3)))
    return stepped(model, adamw(model), batch())


@everyday
def orthogonal_parametrization():
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)), nn.Linear(6, 2))
    return stepped(model, adamw(model), batch())


@everyday
def parametrization_of_ones_own():
    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).T

    model = nn.Linear(6, 6)
    nn.utils.parametrize.register_parametrization(model, "weight", Symmetric())
    return stepped(model, adamw(model), batch())


@everyday
def meta_then_empty_then_loaded():
    stored = network().state_dict()
    with torch.device("meta"):
        model = network()
    model.to_empty(device="cpu")
    model.load_state_dict(stored)
    return stepped(model, adamw(model), batch())


@everyday
def meta_then_assigned():
    stored = network().state_dict()
    with torch.device("meta"):
        model = network()
    model.load_state_dict(stored, assign=True)
    return stepped(model, adamw(model), batch())


@everyday
def meta_then_watched_and_initialised():
    with torch.device("meta"):
        model = network()
    model.to_empty(device="cpu")
    shardlint.watch_writes(model)
    for module in model:
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return stepped(model, adamw(model), batch())


@everyday
def functional_gradients():
    model = network()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradient = torch.func.grad(lambda values, x: score(torch.func.functional_call(model, values, (x,))))
    with shardlint.trace(model) as trace:
        gradient(parameters, batch())
    return shardlint.Target(model=model, trace=trace)


@everyday
def functional_call_into_the_optimizer():
    model = network()
    optimizer = adamw(model)
    with shardlint.trace(model, optimizer) as trace:
        out = torch.func.functional_call(model, dict(model.named_parameters()), (batch(),))
        score(out).backward()
        optimizer.step()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def meta_learning_with_inner_steps():
    model = nn.Linear(6, 3)
    optimizer = adamw(model)
    data = batch()
    with shardlint.trace(model, optimizer) as trace:
        named = dict(model.named_parameters())
        slopes = torch.autograd.grad(score(model(data)), list(named.values()), create_graph=True)
        fast = {name: p - 0.1 * slope for (name, p), slope in zip(named.items(), slopes, strict=True)}
        score(torch.func.functional_call(model, fast, (data,))).backward()
        optimizer.step()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def bias_only_tuning():
    model = network()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return stepped(model, adamw(model), batch())


@everyday
def frozen_trunk_in_the_optimizer():
    model = network()
    model[0].requires_grad_(False)
    return stepped(model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0), batch())


@everyday
def encoder_and_decoder_in_one_list():
    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
    both = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    with shardlint.trace(both, optimizer) as trace:
        data = batch()
        F.mse_loss(decoder(encoder(data)), data).backward()
        optimizer.step()
    return shardlint.Target(model=both, optimizer=optimizer, trace=trace)


@everyday
def loss_with_parameters_beside_the_model():
    class CenterLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.centers = nn.Parameter(torch.randn(3, 3))

        def forward(self, out):
            return (out[:3] - self.centers).square().mean()

    both = nn.ModuleDict({"model": network(), "loss": CenterLoss()})
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    with shardlint.trace(both, optimizer) as trace:
        both["loss"](both["model"](batch())).backward()
        optimizer.step()
    return shardlint.Target(model=both, optimizer=optimizer, trace=trace)


class Module(nn.Module):
    """A training module in Lightning's way: the metrics and the loss are modules too."""

    def __init__(self):
        super().__init__()
        self.model = network()
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(3), label_smoothing=0.1)
        self.register_buffer("mean", torch.zeros(6), persistent=False)
        self.register_buffer("std", torch.ones(6), persistent=False)

    def forward(self, x):
        return self.model((x - self.mean) / self.std)

    def training_step(self, x):
        return self.loss(self(x), torch.tensor([0, 1, 2, 0]))


@everyday
def training_step_of_a_lightning_module():
    model = Module()
    optimizer = adamw(model)
    with shardlint.trace(model, optimizer) as trace:
        model.training_step(batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


class PPO(nn.Module):
    """Policy and value head over one trunk, with a frozen reference, as preference tuning has them."""

    def __init__(self):
        super().__init__()
        self.policy, self.v_head = network(), nn.Linear(3, 1)
        self.reference = copy.deepcopy(self.policy).eval().requires_grad_(False)

    def forward(self, x):
        logits = self.policy(x)
        kl = F.kl_div(self.reference(x).log_softmax(-1), logits.softmax(-1), reduction="batchmean")
        return kl + score(self.v_head(logits))


@everyday
def policy_value_head_and_reference():
    model = PPO()
    return stepped(model, adamw(model), batch())


@everyday
def learned_loss_weights():
    class Uncertainty(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.log_vars = network(), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return (self.net(x).square().mean(0) * torch.exp(-self.log_vars) + self.log_vars).sum()

    model = Uncertainty()
    return stepped(model, adamw(model), batch())


@everyday
def double_precision():
    model = network().double()
    return stepped(model, adamw(model), batch().double())


@everyday
def normalisation_kept_in_float32():
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(6, 6).bfloat16(), nn.LayerNorm(6), nn.Linear(6, 3).bfloat16()

        def forward(self, x):
            return self.b(self.norm(self.a(x.bfloat16()).float()).bfloat16())

    model = Cast()
    return stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), batch())


@everyday
def data_parallel_wrapper():
    model = nn.DataParallel(network())
    return stepped(model, adamw(model), batch())


@everyday
def scale_that_rises_by_steps():
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}])
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=math.ulp(1.0))
    torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [5])
    return stepped(model, optimizer, batch())


test_has_no_false_alarm = everyday.test()
