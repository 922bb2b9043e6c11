"""Models of plain PyTorch, each trained for one step."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from support.everyday import Setups, adamw, stepped

everyday = Setups()
TOKENS = torch.arange(12).reshape(2, 6)


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, size=8):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.register_buffer("bias", torch.tril(torch.ones(size, size)).view(1, 1, size, size))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(width, dim=2))
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        weights = weights.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf")).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab=32, width=16, layers=2, tied=True):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab, width),
                "wpe": nn.Embedding(8, width),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList(Block(width) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx):
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def next_token(logits):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


@everyday
def nanogpt_with_decay_groups():
    model = GPT()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return stepped(model, torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95)), TOKENS, loss=next_token)


@everyday
def gpt_untied_with_tokens_in_evaluation():
    model = GPT(tied=False)
    optimizer = adamw(model)
    target = stepped(model, optimizer, TOKENS, loss=next_token)
    model.eval()
    return target


class BasicBlock(nn.Module):
    def __init__(self, inside, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inside != out:
            self.downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + skip)


class ResNet(nn.Module):
    def __init__(self, classes=5, zero_init_residual=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 0)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, BasicBlock):
                    nn.init.constant_(module.bn2.weight, 0)

    def forward(self, x):
        x = self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def images(batch=2, size=32):
    return torch.randn(batch, 3, size, size)


def labelled(logits):
    return F.cross_entropy(logits, torch.arange(len(logits)))


@everyday
def resnet_with_sgd_momentum():
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    return stepped(model, optimizer, images(), loss=labelled)


@everyday
def resnet_with_zero_initialised_residuals():
    model = ResNet(zero_init_residual=True)
    return stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), images(), loss=labelled)


@everyday
def resnet_frozen_but_for_its_head():
    model = ResNet()
    model.requires_grad_(False)
    model.fc = nn.Linear(16, 3)
    return stepped(model, adamw(model.fc), images(), loss=labelled)


@everyday
def resnet_with_batch_norm_in_evaluation():
    model = ResNet().train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.requires_grad_(False)
    return stepped(model, adamw(model), images(), loss=labelled)


@everyday
def resnet_in_channels_last():
    model = ResNet().to(memory_format=torch.channels_last)
    return stepped(model, adamw(model), images().to(memory_format=torch.channels_last), loss=labelled)


@everyday
def resnet_with_synchronised_batch_norm_fused():
    model = torch.ao.quantization.fuse_modules(ResNet().eval(), [["conv1", "bn1"]], inplace=False)
    return stepped(model.train(), adamw(model), images(), loss=labelled)


class ViT(nn.Module):
    def __init__(self, width=16, classes=5, dynamic=False):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 8, 8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 17, width).normal_(std=0.02))
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


@everyday
def vit_with_zero_head():
    model = ViT()
    return stepped(model, adamw(model), images(), loss=labelled)


@everyday
def vit_with_layer_wise_learning_rates():
    model = ViT()
    groups = [
        {"params": [p], "lr": 1e-3 * 0.9**index, "weight_decay": 0.05 if p.dim() > 1 else 0.0}
        for index, p in enumerate(model.parameters())
    ]
    return stepped(model, torch.optim.AdamW(groups), images(), loss=labelled)


class LayerScale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv = nn.Linear(width, width)
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.pwconv(y)).permute(0, 3, 1, 2)


@everyday
def convnext_with_layer_scale():
    model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerScale(8), LayerScale(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return stepped(model, adamw(model), images(), loss=labelled)


class SwinAttention(nn.Module):
    """A window of four by four with a table of relative positions."""

    def __init__(self, width=8, window=4, heads=2):
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        grid = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        offsets = (grid[:, :, None] - grid[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("relative_position_index", offsets[..., 0] * (2 * window - 1) + offsets[..., 1])
        self.qkv = nn.Linear(width, width * 3)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        table = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = table.view(length, length, -1).permute(2, 0, 1)
        weights = (q @ k.transpose(-2, -1) + bias).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


@everyday
def swin_with_relative_positions():
    model = nn.Sequential(SwinAttention(), nn.LayerNorm(8), SwinAttention())
    return stepped(model, adamw(model), torch.randn(2, 16, 8))


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.down = nn.Conv2d(3, width, 3, 2, 1)
        self.norm = nn.GroupNorm(2, width)
        self.middle = nn.Conv2d(width, width, 3, 1, 1)
        self.up = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.out = nn.Conv2d(width, 3, 3, 1, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        frequencies = torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x, t):
        angles = t[:, None] * self.frequencies
        time = self.time(torch.cat((angles.cos(), angles.sin()), -1))
        hidden = F.silu(self.norm(self.down(x) + time[:, :, None, None]))
        return self.out(F.silu(self.up(self.middle(hidden))))


class Schedule(nn.Module):
    """The noise schedule of DDPM in buffers."""

    def __init__(self, steps=10):
        super().__init__()
        self.model = UNet()
        betas = torch.linspace(1e-4, 0.02, steps)
        self.register_buffer("betas", betas)
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - betas, 0))
        self.register_buffer("sqrt_alphas_cumprod", self.alphas_cumprod.sqrt())

    def forward(self, x):
        t = torch.tensor([1, 7])
        keep = self.sqrt_alphas_cumprod[t][:, None, None, None]
        noise = torch.randn_like(x)
        noisy = keep * x + (1 - self.alphas_cumprod[t])[:, None, None, None].sqrt() * noise
        return F.mse_loss(self.model(noisy, t.float()), noise)


@everyday
def diffusion_with_zero_output_convolution():
    model = Schedule()
    return stepped(model, adamw(model), images(2, 16))


class ControlNet(nn.Module):
    """A trainable copy of the encoder behind a convolution of zeros; the base is frozen."""

    def __init__(self):
        super().__init__()
        self.base = nn.Conv2d(3, 8, 3, padding=1).requires_grad_(False)
        self.copy = nn.Conv2d(3, 8, 3, padding=1)
        self.copy.load_state_dict(self.base.state_dict())
        self.zero_conv = nn.Conv2d(8, 8, 1)
        nn.init.zeros_(self.zero_conv.weight)
        nn.init.zeros_(self.zero_conv.bias)

    def forward(self, x):
        return self.base(x) + self.zero_conv(self.copy(x))


@everyday
def controlnet_with_zero_convolution():
    model = ControlNet()
    return stepped(model, adamw(model), images(2, 8))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(12, 8)
        self.mu, self.logvar = nn.Linear(8, 4), nn.Linear(8, 4)
        self.decode = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 12), nn.Sigmoid())

    def forward(self, x):
        hidden = F.relu(self.encode(x))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        out = self.decode(mu + torch.randn_like(mu) * (logvar / 2).exp())
        return F.mse_loss(out, x) - 0.5 * (1 + logvar - mu**2 - logvar.exp()).mean()


@everyday
def variational_autoencoder():
    model = VAE()
    return stepped(model, torch.optim.Adam(model.parameters()), torch.rand(3, 12))


class VectorQuantiser(nn.Module):
    """A codebook that is moved by averages, not by gradients."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 4), nn.Linear(4, 8)
        self.register_buffer("codebook", torch.randn(6, 4))
        self.register_buffer("cluster_size", torch.zeros(6))
        self.register_buffer("embed_avg", self.codebook.clone())

    def forward(self, x):
        z = self.encode(x)
        index = torch.cdist(z, self.codebook).argmin(-1)
        quantised = self.codebook[index]
        with torch.no_grad():
            self.cluster_size.mul_(0.99).add_(F.one_hot(index, 6).sum(0), alpha=0.01)
        return F.mse_loss(self.decode(z + (quantised - z).detach()), x) + F.mse_loss(z, quantised)


@everyday
def vector_quantiser_with_moving_codebook():
    model = VectorQuantiser()
    return stepped(model, adamw(model), torch.randn(5, 8))


class Tagger(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.rnn = kind(8, 6, num_layers=2, batch_first=True, **options)
        self.out = nn.Linear(6 * (2 if options.get("bidirectional") else 1), 4)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


@everyday
def lstm_tagger_with_padding():
    model = Tagger(nn.LSTM, bidirectional=True, dropout=0.1)
    return stepped(model, torch.optim.Adam(model.parameters()), TOKENS)


@everyday
def gru_tagger():
    model = Tagger(nn.GRU)
    return stepped(model, torch.optim.RMSprop(model.parameters()), TOKENS)


@everyday
def lstm_with_projection_and_forget_bias():
    model = nn.LSTM(4, 6, proj_size=3)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
            parameter.data[6:12].fill_(1.0)
    return stepped(model, adamw(model), torch.randn(5, 2, 4), loss=lambda out: out[0].square().mean())


class Seq2Seq(nn.Module):
    """Encoder and decoder share their embedding, the output is tied to it."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(20, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.shared.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6), persistent=False)

    def forward(self, source, target):
        return self.out(self.transformer(self.shared(source), self.shared(target), tgt_mask=self.mask))


@everyday
def transformer_of_torch_with_tied_output():
    model = Seq2Seq()
    return stepped(model, adamw(model), TOKENS, TOKENS)


class Sinusoids(nn.Module):
    def __init__(self, width=8, length=16):
        super().__init__()
        self.linear = nn.Linear(width, width)
        position = torch.arange(length)[:, None]
        term = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(length, 1, width)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * term), torch.cos(position * term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.linear(x + self.pe[: len(x)])


@everyday
def positional_encoding_of_the_tutorial():
    model = Sinusoids()
    return stepped(model, adamw(model), torch.randn(5, 2, 8))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, a, b):
        return F.pairwise_distance(self.tower(a), self.tower(b))


@everyday
def siamese_towers():
    model = Siamese()
    return stepped(model, adamw(model), torch.randn(3, 6), torch.randn(3, 6))


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.Linear(5, 4)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))

    def forward(self, image, text):
        image, text = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        return F.cross_entropy(self.logit_scale.exp() * image @ text.T, torch.arange(len(image)))


@everyday
def contrastive_with_temperature():
    model = Contrastive()
    return stepped(model, adamw(model), torch.randn(3, 6), torch.randn(3, 5))


class MoE(nn.Module):
    def __init__(self, width=8, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.register_buffer("expert_bias", torch.zeros(experts))

    def forward(self, x):
        weights, chosen = (self.gate(x) + self.expert_bias).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            if rows.any():
                out[rows] = expert(x[rows]) * weights[rows, None]
        return out


@everyday
def mixture_with_idle_experts():
    model = MoE()
    return stepped(model, adamw(model), torch.randn(2, 8))


class StackedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.w1 = nn.Parameter(torch.randn(3, 8, 16) * 0.1)
        self.w2 = nn.Parameter(torch.randn(3, 16, 8) * 0.1)
        self.b1 = nn.Parameter(torch.zeros(3, 16))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        hidden = torch.einsum("bd,edh->beh", x, self.w1) + self.b1
        return torch.einsum("beh,ehd,be->bd", hidden.relu(), self.w2, weights)


@everyday
def mixture_of_stacked_experts():
    model = StackedExperts()
    return stepped(model, adamw(model), torch.randn(2, 8))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.actor, self.critic = nn.Linear(8, 2), nn.Linear(8, 1)
        self.log_std = nn.Parameter(torch.zeros(2))
        nn.init.orthogonal_(self.actor.weight, gain=0.01)
        nn.init.orthogonal_(self.critic.weight)

    def forward(self, state):
        hidden = self.body(state)
        action = torch.distributions.Normal(self.actor(hidden), self.log_std.exp())
        drawn = action.sample()
        return -action.log_prob(drawn).mean() + self.critic(hidden).square().mean()


@everyday
def actor_and_critic():
    model = ActorCritic()
    return stepped(model, torch.optim.Adam(model.parameters(), lr=3e-4), torch.randn(3, 4))


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.advantage = nn.Linear(4, 1), nn.Linear(4, 3)

    def forward(self, x):
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdim=True)


@everyday
def deep_q_network_with_target():
    online, target = Dueling(), Dueling()
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    both = nn.ModuleDict({"online": online, "target": target})
    state = torch.randn(3, 4)
    optimizer = torch.optim.Adam(online.parameters())
    import shardlint

    with shardlint.trace(both, optimizer) as trace:
        F.smooth_l1_loss(online(state), target(state)).backward()
        optimizer.step()
    return shardlint.Target(model=both, optimizer=optimizer, trace=trace)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleDict({"main": nn.Linear(8, 2), "aux": nn.Linear(8, 3)})

    def forward(self, x):
        hidden = self.trunk(x)
        return {name: head(hidden) for name, head in self.heads.items()}


@everyday
def several_heads_in_a_dictionary():
    model = TwoHeads()
    return stepped(model, adamw(model), torch.randn(3, 4))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.ws = nn.ParameterList(nn.Parameter(torch.randn(4, 4)) for _ in range(2))
        self.scale = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})

    def forward(self, x):
        return x @ self.ws[0] @ self.ws[1] * self.scale["a"]


@everyday
def parameters_in_lists_and_dictionaries():
    model = Factors()
    return stepped(model, adamw(model), torch.randn(3, 4))


class GraphConv(nn.Module):
    """A dense graph convolution with an adjacency matrix in a sparse buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 3))
        nn.init.xavier_uniform_(self.weight)
        self.bias = nn.Parameter(torch.zeros(3))
        self.register_buffer("adjacency", torch.eye(5).to_sparse(), persistent=False)

    def forward(self, x):
        return torch.sparse.mm(self.adjacency, x @ self.weight) + self.bias


@everyday
def graph_convolution_with_sparse_adjacency():
    model = GraphConv()
    return stepped(model, adamw(model), torch.randn(5, 4))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(10, 4, sparse=True), nn.Embedding(12, 4, sparse=True)

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(-1)


@everyday
def recommender_with_sparse_adam():
    model = Recommender()
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    return stepped(model, optimizer, torch.tensor([1, 2]), torch.tensor([3, 4]))


@everyday
def embedding_bag_with_offsets():
    bag = nn.EmbeddingBag(20, 4, mode="mean")
    return stepped(bag, adamw(bag), torch.arange(6), torch.tensor([0, 3]))


class PINN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.requires_grad_()
        y = self.net(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (slope + y).square().mean() + (self.net(torch.zeros(1, 1)) - 1).square().mean()


@everyday
def physics_informed_with_double_backward():
    model = PINN()
    return stepped(model, adamw(model), torch.rand(4, 1))


class NeRF(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(4), persistent=False)
        self.mlp = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        angles = (x[..., None] * self.bands).flatten(-2)
        return self.mlp(torch.cat((angles.sin(), angles.cos()), -1))


@everyday
def radiance_field_with_frequency_bands():
    model = NeRF()
    return stepped(model, adamw(model), torch.rand(5, 3))


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Conv1d(1, 4, 1)
        self.layers = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**i, padding="same") for i in range(3))

    def forward(self, x):
        x = self.start(x)
        for layer in self.layers:
            tanh, gate = layer(x).chunk(2, 1)
            x = x + tanh.tanh() * gate.sigmoid()
        return x


@everyday
def dilated_convolutions_over_audio():
    model = WaveNet()
    return stepped(model, adamw(model), torch.randn(2, 1, 16))


class Spectrogram(nn.Module):
    """The front end of an audio model: a window and a filter bank in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(16), persistent=False)
        self.register_buffer("filters", torch.rand(9, 5), persistent=False)
        self.head = nn.Linear(5, 2)

    def forward(self, wave):
        power = torch.stft(wave, 16, 8, window=self.window, return_complex=True).abs().square()
        return self.head(power.transpose(1, 2) @ self.filters)


@everyday
def spectrogram_front_end():
    model = Spectrogram()
    return stepped(model, adamw(model), torch.randn(2, 64))


class Mamba(nn.Module):
    def __init__(self, width=8, state=4):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, state + 1).float().repeat(width, 1)))
        self.D = nn.Parameter(torch.ones(width))
        self.dt = nn.Linear(width, width)
        self.B, self.C = nn.Linear(width, state), nn.Linear(width, state)

    def forward(self, x):
        h, out = torch.zeros(x.shape[0], x.shape[2], self.A_log.shape[1]), []
        for t in range(x.shape[1]):
            u = x[:, t]
            step = F.softplus(self.dt(u))[..., None]
            h = torch.exp(-step * self.A_log.exp()) * h + step * self.B(u)[:, None] * u[..., None]
            out.append((h * self.C(u)[:, None]).sum(-1) + self.D * u)
        return torch.stack(out, 1)


@everyday
def state_space_by_hand():
    model = Mamba()
    return stepped(model, adamw(model), torch.randn(2, 3, 8))


class Fourier(nn.Module):
    """A complex weight, as Fourier neural operators have it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.cfloat) / 16)
        self.skip = nn.Conv1d(4, 4, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[..., :3] = torch.einsum("bix,iox->box", spectrum[..., :3], self.weight)
        return torch.fft.irfft(out, n=x.shape[-1]) + self.skip(x)


@everyday
def fourier_operator_with_complex_weights():
    model = Fourier()
    return stepped(model, torch.optim.Adam(model.parameters()), torch.randn(2, 4, 8))


@everyday
def lazy_modules_after_a_dry_run():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    model(images(1, 8))
    return stepped(model, adamw(model), images(2, 8))


@everyday
def multihead_attention_with_biases():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    model = Net()
    return stepped(model, adamw(model), torch.randn(2, 3, 8))


@everyday
def prototypes_with_angular_margin():
    class ArcFace(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(6, 4)
            self.weight = nn.Parameter(torch.empty(3, 4))
            nn.init.xavier_uniform_(self.weight)

        def forward(self, x):
            cosine = F.linear(F.normalize(self.backbone(x)), F.normalize(self.weight))
            return F.cross_entropy(8.0 * cosine, torch.tensor([0, 1, 2]))

    model = ArcFace()
    return stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 6))


test_has_no_false_alarm = everyday.test()
