// The bundle's manifest. Written by compiler/bundle/schema.py from manifest.py and entries.py there: edit those files.

/** A size: an int, the name of a dim, or [operator, left, right]. */
export type Expr = number | string | readonly [string, Expr, Expr];

/** [comparison, left, right], ["and", condition, condition], or null for always. */
export type Condition = readonly [string, unknown, unknown] | null;

export const FORMAT_VERSION = 8;

/** The names of all dims; expr.ts describes them. */
export const DIMS: readonly string[] = ["A", "B", "C", "DR", "F", "G", "H", "I", "L", "LS", "LW", "M", "N", "P", "PD", "PH", "PS", "PW", "R", "S", "T", "V", "W", "Z"];

/** The experts of a mixture: feed-forwards of ``intermediate_size``, of which each token uses ``chosen`` of ``number``. `ops.experts.route` defines ``router``, ``normalized`` and ``scale``. The layers in ``dense_layers`` have a feed-forward of the model's intermediate size instead. ``biases``: those of the router and of every expert; ``choice_bias``: a bias of scores for the choice only. ``limit``, ``slope`` and ``shift`` are those of the experts' gates; see `ops.elementwise.gated`. */
export interface ExpertSpec {
  readonly number: number;
  readonly chosen: number;
  readonly intermediate_size: number;
  readonly router: "softmax" | "sigmoid" | "softmax_chosen";
  readonly normalized: boolean;
  readonly scale: number;
  readonly dense_layers: readonly number[];
  readonly biases: boolean;
  readonly choice_bias: boolean;
  readonly limit: number | null;
  readonly slope: number;
  readonly shift: number;
}

/** The tower of a model that sees pictures, and the projector behind it: together they make features, which take the places of tokens' embeddings. ``model_type`` is that of the complete model; `arch/vision` has one file for each. A patch has ``patch_elements`` numbers, a block of ``block`` x ``block`` patches becomes one feature, and a tile of a picture has at most ``tile_patches``. The tower has a table of ``positions``. ``projector_size``: the elements between the projector's two projections, which pass through ``projector_activation``; None if it has only one. ``projector_norm``: it has a norm before them, with ``projector_eps``; ``projector_bias``: they have biases. ``both_ways``: the layers of the text model in which the tokens of a picture see all of it, and not only those before them; "windows" are those with a window. Towers rotate by row and column if ``tile_side``, the most patches of a tile's side, is not 0. The rows behind each of ``deepstack_layers`` become as many more features, which are added behind the first layers of the text model (DeepStack). ``mrope_section``: of the pairs that the text model's rotation has, those that turn by each of a token's three positions, interleaved (M-RoPE); empty if tokens have one position. ``bounded``: the inputs and outputs of its layers' projections have bounds. ``frames``: a patch of a video joins as many. `images.ImageSpec` says how pictures become patches. */
export interface VisionSpec {
  readonly model_type: string;
  readonly hidden_size: number;
  readonly num_layers: number;
  readonly num_heads: number;
  readonly intermediate_size: number;
  readonly activation: string;
  readonly norm_eps: number;
  readonly patch_elements: number;
  readonly positions: number;
  readonly block: number;
  readonly tile_patches: number;
  readonly projector_size: number | null;
  readonly projector_activation: string;
  readonly projector_bias: boolean;
  readonly projector_norm: boolean;
  readonly projector_eps: number;
  readonly both_ways: "none" | "windows" | "all";
  readonly tile_side: number;
  readonly deepstack_layers: readonly number[];
  readonly mrope_section: readonly number[];
  readonly bounded: boolean;
  readonly frames: 1 | 2;
}

/** The tower of a model that hears, which makes features of frames of sound. ``model_type`` is that of the complete model; `arch/hearing` has one file for each. A row of the tower has ``row_elements`` numbers, those of the frames that become one feature, and a sound has at most ``sound_rows``, which the tower reads at once if it is ``whole``. Without layers, rows are only normed, with ``norm_eps``, and projected; others have the sizes of a Conformer: ``channels`` of its convolutions with strides, ``taps`` of that over rows, a ``window`` of rows that see those before them, with a ``softcap`` of scores, the factor ``residual`` of feed-forwards, and rows of ``output_size`` behind the last layer. ``bounded``: the inputs and outputs of its layers' projections have bounds. `sounds.SoundSpec` says how sound becomes frames. */
export interface HearingSpec {
  readonly model_type: string;
  readonly row_elements: number;
  readonly sound_rows: number;
  readonly whole: boolean;
  readonly norm_eps: number;
  readonly hidden_size: number;
  readonly num_layers: number;
  readonly num_heads: number;
  readonly activation: string;
  readonly channels: readonly number[];
  readonly taps: number;
  readonly window: number;
  readonly softcap: number;
  readonly residual: number;
  readonly output_size: number;
  readonly bounded: boolean;
}

/** A row of an encoder depends on itself, on ``back`` rows before it and on ``ahead`` later ones, in all layers. */
export interface ReceptiveField {
  readonly back: number;
  readonly ahead: number;
}

/** The encoder of windows of sound to whose rows a decoder attends; `runtime/audio/windows.py` makes what it reads. A row has ``frames_of_row`` frames of ``frame_samples``, each ``hop_samples`` after the one before, and reads ``row_elements`` numbers. With ``mel_bins``, these are the energies of its frames and of those before and after them, and each window of a transcript has ``positions`` rows. With none, they are the samples from its first frame on, and a window has up to ``positions`` rows, of which the last ``rows_behind`` are only read by those before them. A row of layer l sees ``rows_back[l]`` rows, itself included, and ``rows_ahead[l]`` - 1 later ones; all, if these are empty. ``receptive_field`` is what that comes to in all layers, None if a row depends on its whole window. */
export interface AudioSpec {
  readonly mel_bins: number;
  readonly frame_samples: number;
  readonly hop_samples: number;
  readonly frames_of_row: number;
  readonly row_elements: number;
  readonly positions: number;
  readonly hidden_size: number;
  readonly num_layers: number;
  readonly num_heads: number;
  readonly head_dim: number;
  readonly intermediate_size: number;
  readonly rows_behind: number;
  readonly rows_back: readonly number[];
  readonly rows_ahead: readonly number[];
  readonly receptive_field: ReceptiveField | null;
}

/** What an encoder of sound has besides the layers of other encoders. A row reads ``frames`` of ``mel_bins`` energies, through convolutions of ``channels`` that each halve time and bands. Layers have a convolution over ``size`` rows, an odd number. Gulati et al. 2020; Rekesh et al. 2023 (Fast Conformer). */
export interface ConformerSpec {
  readonly mel_bins: number;
  readonly frames: number;
  readonly channels: number;
  readonly size: number;
}

/** A decoder with grouped-query attention and a gated feed-forward, or an encoder. Sizes in elements. ``windows`` has one entry per layer: the number of tokens that a token sees, itself included, or None for all. It is empty if all layers see all tokens. ``activation`` is that of the gate, one of `ops.op.ACTIVATIONS`. Layers with a window rotate by ``window_rope`` unless it is None. The layers in ``unrotated`` do not rotate queries and keys. ``attention_scale`` None: 1 / sqrt(head_dim). A soft-cap c replaces x by c * tanh(x / c); None leaves x unchanged. The embedding is multiplied by ``embedding_scale``, the results of attention and feed-forward by ``residual_scale`` before they are added, and the logits by ``logit_scale`` before their soft-cap. Layers with a window have ``window_num_kv_heads`` of ``window_head_dim`` unless these are None. The last ``num_kv_shared_layers`` layers read the keys and values of an earlier one, and their feed-forward has ``shared_intermediate_size`` elements. Layers have a second embedding of ``per_layer_size`` elements for each of ``per_layer_vocab_size`` tokens; 0 if they have none. ``experts``: None if all layers are dense. ``causal``: a token sees no later one. If not, a window w restricts it to the tokens less than w away in both directions. Encoders may have a table of positions, whose row ``first_position`` is that of a text's first token, and embeddings of ``num_token_types`` types of tokens, such as those of a query and a passage. ``rms_norm_eps`` is that of their norms. Their tables have rows of ``embedding_size`` elements unless it is None. The rows of a model that makes vectors are projected to ``projected_size`` elements after the last norm unless it is None. ``distances``: None if scores do not depend on how far a key is from a row. ``convolution``: None if there is none. ``qkv_limit``: queries, keys and values are clipped to it, before the rotation. ``sinks``: each query head of a decoder has a sink; see `ops.attention`. ``keys_are_values``: the values of layers without a window are their keys before norm and rotation. ``mixers`` says what each layer mixes tokens with; empty if all have attention. ``states`` are the sizes of those with a state. ``draft_layers``: those of the heads with which the model drafts its own tokens, behind its layers. ``factors``: what the results of a layer's projections are multiplied by, by their modules; of rows from row r of a module on, by "module[r]". ``vision``: the tower of a model that sees pictures; None if it does not. ``hearing``: the tower of a model that hears, which makes features of sound; None if it does not. ``audio``: the encoder of sound beside the decoder; None if it has none. ``conformer``: what an encoder of sound has whose rows name tokens; None for other models. */
export interface ModelSpec {
  readonly model_type: string;
  readonly vocab_size: number;
  readonly hidden_size: number;
  readonly num_layers: number;
  readonly num_heads: number;
  readonly num_kv_heads: number;
  readonly head_dim: number;
  readonly intermediate_size: number;
  readonly max_position_embeddings: number;
  readonly rms_norm_eps: number;
  readonly rope: object;
  readonly tie_word_embeddings: boolean;
  readonly qkv_bias: boolean;
  readonly output_bias: boolean;
  readonly mlp_bias: boolean;
  readonly qk_norm: boolean;
  readonly windows: readonly (number | null)[];
  readonly activation: string;
  readonly window_rope: object | null;
  readonly unrotated: readonly number[];
  readonly attention_scale: number | null;
  readonly attention_softcap: number | null;
  readonly logit_softcap: number | null;
  readonly logit_scale: number;
  readonly embedding_scale: number;
  readonly residual_scale: number;
  readonly window_head_dim: number | null;
  readonly window_num_kv_heads: number | null;
  readonly num_kv_shared_layers: number;
  readonly shared_intermediate_size: number | null;
  readonly per_layer_size: number;
  readonly per_layer_vocab_size: number;
  readonly experts: ExpertSpec | null;
  readonly causal: boolean;
  readonly sinks: boolean;
  readonly qkv_limit: number | null;
  readonly keys_are_values: boolean;
  readonly first_position: number;
  readonly num_token_types: number;
  readonly embedding_size: number | null;
  readonly projected_size: number | null;
  readonly distances: object | null;
  readonly convolution: object | null;
  readonly mixers: readonly ("attention" | "short_conv" | "gated_delta" | "mamba2" | "attention_mamba2")[];
  readonly states: object | null;
  readonly draft_layers: number;
  readonly factors: Readonly<Record<string, number>>;
  readonly vision: VisionSpec | null;
  readonly hearing: HearingSpec | null;
  readonly audio: AudioSpec | null;
  readonly conformer: ConformerSpec | null;
  readonly bos_token_id: number | null;
  readonly eos_token_ids: readonly number[];
}

/** A text that precedes every text of a kind, such as "query". */
export interface PromptSpec {
  readonly name: string;
  readonly text: string;
}

/** How to compute a text's vector of ``size`` numbers from the rows of the last layer: ``pooling`` makes one row of those of all tokens, the ``dense`` layers follow, and the result is scaled to length 1 if ``normalize``. "last_token" and "cls" are the rows of the last and the first token; "mean_sqrt_len" is the sum divided by the square root of the number of tokens. ``prompts`` are those that the model was trained with, ``default_prompt`` the name of the one for texts of no kind. ``dimensions`` are the lengths to which a vector may be shortened, before it is scaled; empty if the model names none. */
export interface EmbeddingSpec {
  readonly pooling: "last_token" | "mean" | "cls" | "max" | "mean_sqrt_len";
  readonly normalize: boolean;
  readonly size: number;
  readonly dense: readonly object[];
  readonly prompts: readonly PromptSpec[];
  readonly default_prompt: string | null;
  readonly dimensions: readonly number[];
}

/** What each kind of step from one token's label to the next adds to the scores, where labels form spans: they stay outside of spans (background), a span starts, continues inside or ends, and after its end the background or another span follows. */
export interface TransitionSpec {
  readonly background_stay: number;
  readonly background_to_start: number;
  readonly inside_to_continue: number;
  readonly inside_to_end: number;
  readonly end_to_background: number;
  readonly end_to_start: number;
}

/** The options of a kind of question: the scores from ``first`` on are theirs, in their order. ``labels`` are their names in the prompt, at least as many as a question may have options. The softmax of score / ``temperature`` makes probabilities. */
export interface DecisionKindSpec {
  readonly kind: "choice" | "yes_no" | "score";
  readonly first: number;
  readonly labels: readonly string[];
  readonly temperature: number;
}

/** How a model with a decision head answers typed questions (`web/src/shared/questions/head.ts`): its chat template writes a prompt for each, whose last token has the scores. ``yes_first``: whether "true" precedes "false" in the options of a question of yes or no. ``softcap``: scores are softcap * tanh(score / softcap). */
export interface DecisionSpec {
  readonly kinds: readonly DecisionKindSpec[];
  readonly yes_first: boolean;
  readonly softcap: number | null;
}

/** The scores of a classifier: one number for each of ``labels``, of a text, or with ``per_token`` of each of its tokens. ``activation`` makes probabilities of the scores. With ``transitions``, the labels of tokens form spans (`forms_spans`), and a text has the labels of the best spans (`web/src/shared/label_spans.ts`); without them, each token has its best label. ``relevance`` is the label whose probability says how relevant a passage is to a query, for models that score such pairs; None for others. ``pooling`` makes the row of a text, before the head's dense layers, or with ``pools_late`` after them. ``template`` is the text of a pair, with {instruction}, {query} and {document}; None if the tokenizer joins the two texts. ``instruction`` is the default one. ``decision``: its scores answer typed questions and nothing else. */
export interface ClassifierSpec {
  readonly labels: readonly string[];
  readonly activation: "none" | "sigmoid" | "softmax";
  readonly per_token: boolean;
  readonly pooling: "last_token" | "mean" | "cls" | "max" | "mean_sqrt_len";
  readonly pools_late: boolean;
  readonly relevance: number | null;
  readonly template: string | null;
  readonly instruction: string | null;
  readonly transitions: TransitionSpec | null;
  readonly decision: DecisionSpec | null;
}

/** The token of a language, by its code such as "en"; None if it is the model's only one, which no prompt names. */
export interface LanguageToken {
  readonly code: string;
  readonly token: number | null;
}

/** A prompt is ``start``, and if ``languages`` have tokens, one of them and the task; then ``no_timestamps``, unless the text is to have timestamps: all tokens after it, ``seconds`` / rows of a window apart. Without that token, the model writes no timestamps, and ``seconds`` are those of its longest window. ``previous`` precedes a text that was transcribed before, None if the model has no such token. The probability of ``no_speech`` after ``start`` is that of a window without speech. ``suppressed`` tokens are never written, ``suppressed_first`` not as the first one. With timestamps, the first one is at most number ``max_initial_timestamp``, unless that is None. */
export interface SpeechSpec {
  readonly start: number;
  readonly no_timestamps: number | null;
  readonly no_speech: number | null;
  readonly seconds: number;
  readonly languages: readonly LanguageToken[];
  readonly transcribe: number | null;
  readonly translate: number | null;
  readonly previous: number | null;
  readonly suppressed: readonly number[];
  readonly suppressed_first: readonly number[];
  readonly max_initial_timestamp: number | null;
}

/** How the rows of an encoder of sound become text: the likeliest token of each row is written unless it is ``blank`` or that of the row before (connectionist temporal classification, Graves et al. 2006). ``features`` names how frames are made of samples. */
export interface CtcSpec {
  readonly blank: number;
  readonly features: "parakeet";
}

/** Every picture gets this size, whatever its aspect ratio (Gemma 3). */
export interface FixedSize {
  readonly height: number;
  readonly width: number;
  readonly rule: "fixed";
}

/** The longer side becomes ``pixels``. The other one keeps the aspect ratio; it is rounded down, and an odd length is increased by 1. Afterwards no side exceeds ``most`` (SmolVLM, Idefics 3). */
export interface LongestEdge {
  readonly pixels: number;
  readonly most: number;
  readonly rule: "longest_edge";
}

/** Both sides become multiples of a block's side: rounded, half to even, if the area is then ``least`` to ``most`` pixels, otherwise scaled to these bounds (Qwen2-VL's smart_resize). With ``whole_blocks``, sides are at least one block before their area is compared (LFM2-VL). Pictures whose longer side is more than ``max_aspect`` times the other one are refused; None: not for that reason. */
export interface AreaBounds {
  readonly least: number;
  readonly most: number;
  readonly whole_blocks: boolean;
  readonly max_aspect: number | null;
  readonly rule: "area_bounds";
}

/** The sides become the largest multiples of a block's side that keep the aspect ratio, with at most ``most`` pixels. Small pictures grow (Gemma 4). */
export interface LargestArea {
  readonly most: number;
  readonly rule: "largest_area";
}

/** The resized picture is resized again, to multiples of ``side``, and cut into tiles of that side. If there are several, that picture as one tile is the last, the overview (SmolVLM, Idefics 3). */
export interface EvenTiles {
  readonly side: number;
  readonly rule: "even";
}

/** Pictures of more than ``above`` pixels, as multiples of a block's side, are resized to a grid of ``least`` to ``most`` tiles of ``side`` pixels, whose aspect ratio is the closest. With ``overview``, the picture without a grid is the last tile (LFM2-VL). */
export interface TileGrid {
  readonly side: number;
  readonly least: number;
  readonly most: number;
  readonly above: number;
  readonly overview: boolean;
  readonly rule: "grid";
}

/** Which rows of the tower's table of positions a patch's position mixes, and with which weights. The table has ``side`` x ``side`` rows. "plain": a tile has as many patches. "fractions": the row at the same fraction of both sides (Idefics 3). "antialiased" and "corners": bilinear between the centres of rows, with a wider filter for fewer patches than rows, or between the outermost rows (PyTorch's align_corners). "axes": two tables of ``side`` rows, one behind the other, first of columns, then of rows, whose rows are added. ``taps``: the most rows that a patch mixes; patches with fewer have row 0 with weight 0. */
export interface PositionSpec {
  readonly rule: "plain" | "fractions" | "antialiased" | "corners" | "axes";
  readonly side: number;
  readonly taps: number;
}

/** How a picture reads in a prompt. A chat template writes ``mark`` for it, which is replaced by: ``start``, the tiles, ``end``. A tile is a text and as many of ``placeholder``, token ``placeholder_id``, as it has features. The text is ``whole`` for a single tile, ``overview`` for the last one, and ``tile`` for others, in which {row} and {column} count from 1. ``row_end`` follows each row of tiles. */
export interface ImagePrompt {
  readonly mark: string;
  readonly placeholder: string;
  readonly placeholder_id: number;
  readonly start: string;
  readonly whole: string;
  readonly tile: string;
  readonly row_end: string;
  readonly overview: string;
  readonly end: string;
}

/** ``fps`` frames a second, rounded, but 1 to ``most``, evenly from the first to the last one, with indices rounded down. Of videos that are more than 2 ``skip`` seconds longer than ``most`` times ``fps``, ``skip`` seconds at both ends are left out (SmolVLM). */
export interface BySeconds {
  readonly fps: number;
  readonly most: number;
  readonly skip: number;
  readonly rule: "seconds";
}

/** ``fps`` frames a second, rounded down, but ``least`` to ``most`` and no more than there are, evenly from the first to the last one, with indices rounded, half to even (Qwen3-VL). */
export interface ByRate {
  readonly fps: number;
  readonly least: number;
  readonly most: number;
  readonly rule: "rate";
}

/** ``count`` frames at the beginnings of equal parts of the video; all of a video that has no more (Gemma 4). */
export interface ByCount {
  readonly count: number;
  readonly rule: "count";
}

/** The longer side becomes ``pixels``, as by `LongestEdge`; the frame is then resized to ``side`` x ``side``, whatever its aspect ratio (SmolVLM). */
export interface FrameEdge {
  readonly pixels: number;
  readonly most: number;
  readonly side: number;
  readonly rule: "edge";
}

/** As `LargestArea`, for each frame (Gemma 4). */
export interface FrameArea {
  readonly most: number;
  readonly rule: "area";
}

/** Both sides become multiples of a block's side: rounded, half to even, if all frames together then have ``least`` to ``most`` pixels, otherwise scaled to these bounds. If ``each`` is given, ``most`` is the smaller one of ``each`` and an equal part of ``most`` for each frame, but at least 1.05 times ``least``. No frame is larger than a picture. Frames whose longer side is more than ``max_aspect`` times the other one are refused (Qwen3-VL). */
export interface FrameVolume {
  readonly least: number;
  readonly most: number;
  readonly each: number | null;
  readonly max_aspect: number;
  readonly rule: "volume";
}

/** How a video reads in a prompt. A chat template writes ``mark`` for it, which is replaced by: ``start``, the tiles with ``between`` between them, ``end``. A tile is ``tile`` with its placeholders for {features}. {mm:ss} and {seconds} are the time of a tile, the latter with one decimal; the time of several frames is the mean of the first and the last one. In ``start``, {count} is the number of frames in English words, and {h:mm:ss} the length of the video. */
export interface VideoPrompt {
  readonly mark: string;
  readonly tile: string;
  readonly start: string;
  readonly between: string;
  readonly end: string;
}

/** ``frames`` are those of a tile; the last one is repeated for a tile that lacks some. */
export interface VideoSpec {
  readonly sampling: BySeconds | ByRate | ByCount;
  readonly size: FrameEdge | FrameArea | FrameVolume;
  readonly frames: number;
  readonly prompt: VideoPrompt;
}

/** How pictures become patches of ``patch`` x ``patch`` pixels, in blocks of ``block`` x ``block`` patches. ``filter`` resizes, with antialiasing. The value of one of the 3 channels is (x - 255 mean) / (255 std), with x from 0 to 255, or x / 255 if ``mean`` and ``std`` are None. ``order`` is that of a patch's elements. If ``tiles`` is None, a picture is one tile. ``video`` is None if the model reads no videos. */
export interface ImageSpec {
  readonly patch: number;
  readonly block: number;
  readonly order: "channel_row_column" | "row_column_channel";
  readonly filter: "bilinear" | "bicubic" | "lanczos";
  readonly mean: readonly number[] | null;
  readonly std: readonly number[] | null;
  readonly size: FixedSize | LongestEdge | AreaBounds | LargestArea;
  readonly tiles: EvenTiles | TileGrid | null;
  readonly positions: PositionSpec;
  readonly prompt: ImagePrompt;
  readonly video: VideoSpec | null;
}

/** Frames are logarithms of magnitudes in ``bins`` bands of the HTK mel scale, from 0 Hz to half of the rate. A frame of ``window`` samples begins every ``hop`` samples, the first one half a window before the sound; its spectrum has ``points``. ``floor`` is added to the magnitude of a band. A frame exists if the sample after its window is one of the sound (Gemma 4). */
export interface MelSpec {
  readonly bins: number;
  readonly window: number;
  readonly hop: number;
  readonly points: number;
  readonly floor: number;
}

/** How sound becomes features: one for each ``frames`` frames, the last of which are zeros if some are missing. ``samples`` are those of a frame, if ``mel`` is None, and otherwise those from one frame to the next. A sound has at most ``most`` samples. ``prompt``: as that of a picture that is one tile. */
export interface SoundSpec {
  readonly samples: number;
  readonly frames: number;
  readonly mel: MelSpec | null;
  readonly most: number;
  readonly prompt: ImagePrompt;
}

/** A tensor's rows are heads of ``head_dim`` rows, of which the first ``rotary_dim`` are pairs (2i, 2i + 1). The interleaved form (GPT-J, Wang and Komatsuzaki 2021) rotates these pairs; the rotate-half form, which our ops compute, rotates the pairs (i, i + rotary_dim / 2). Both give the same scores if the rows of queries and keys are read in the order of the second. */
export interface RotaryPairs {
  readonly head_dim: number;
  readonly rotary_dim: number;
}

/** A file of the bundle. ``size`` in bytes; ``sha256`` in hexadecimal. */
export interface FileEntry {
  readonly file: string;
  readonly size: number;
  readonly sha256: string;
}

/** The keys and values, and states, after the start of prompts, in whole pages of ``tokens`` tokens. The compiler's reference has computed them. ``file`` is one of the bundle's files: for each page group, the pages that later tokens read, in their order, each with all states of the group in the plan's order; and last a slot of recurrent states. ``tokens_sha256`` is that of the token ids as little-endian int32. ``activation`` is the dtype of the devices that can use it. */
export interface PrefixEntry {
  readonly file: string;
  readonly tokens: number;
  readonly tokens_sha256: string;
  readonly activation: "float32" | "float16";
}

/** What the checkpoint's own files say about where it comes from and under which license it is. None: they do not say. ``repository`` and ``revision`` are those of the Hugging Face Hub that it was downloaded from. ``license`` is the hub's name of the license, such as "apache-2.0"; "other" has a ``license_name``. ``base_models`` are the models that it was made from. ``read_from`` names the files that say so. */
export interface OriginEntry {
  readonly repository: string | null;
  readonly revision: string | null;
  readonly license: string | null;
  readonly license_name: string | null;
  readonly license_link: string | null;
  readonly base_models: readonly string[];
  readonly read_from: readonly string[];
}

/** One plane of a weight: ``size`` bytes at ``offset`` of shard number ``shard``. */
export interface PlaneEntry {
  readonly name: string;
  readonly dtype: "float32" | "float16" | "uint32" | "int8";
  readonly shape: readonly number[];
  readonly shard: number;
  readonly offset: number;
  readonly size: number;
}

/** A weight. ``quantization`` is None for vectors, which are one float32 plane "w". For a matrix it is the bundle's, or names the format of integers that the checkpoint stores, such as "q4c": 4 bits and one scale for each row. ``layout`` is the memory layout of its planes (N, W). "rows": row after row. "tiles16": (ceil(N/16), W, 16), tiles of 16 rows in which the same element of all rows is adjacent; rows beyond N are zeros. */
export interface WeightEntry {
  readonly shape: readonly number[];
  readonly quantization: string | null;
  readonly layout: "rows" | "tiles16";
  readonly planes: readonly PlaneEntry[];
}

/** An array that a runtime allocates. "activation" is the dtype of the chosen activation entry. */
export interface BufferEntry {
  readonly shape: readonly Expr[];
  readonly dtype: "float32" | "int32" | "uint32" | "activation";
}

/** An array that comes with every batch. */
export interface InputEntry extends BufferEntry {
  readonly dtype: "float32" | "int32" | "uint32";
}

/** An input (S, columns) float32 that the runtime gathers: for each new token, its row times ``scale``, in float32. ``weights`` are the host weights that hold the table's rows, in order. A token id beyond the last row has zeros. The ids must be known: with such an input, no step starts before the tokens of the previous step have been read. */
export interface GatheredEntry {
  readonly weights: readonly string[];
  readonly scale: number;
}

/** An array that a runtime computes. "rope": (positions, R/2, 2) float32, ``scale`` times the cosine and sine of position * inverse_frequencies[i], for the positions from ``first`` on. */
export interface ConstantEntry {
  readonly kind: "rope";
  readonly shape: readonly number[];
  readonly inverse_frequencies: readonly number[];
  readonly scale: number;
  readonly first: number;
}

/** One step. ``inputs`` and ``outputs`` map roles to names of buffers, inputs, states, constants or weights. ``variants`` names the list of kernels that can run it. */
export interface StepEntry {
  readonly op: string;
  readonly variants: string;
  readonly inputs: Readonly<Record<string, string>>;
  readonly outputs: Readonly<Record<string, string>>;
  readonly attrs: Readonly<Record<string, unknown>>;
}

/** See `plan.Plan`. ``inputs`` are all inputs of a batch, including those that are ``gathered``. ``outputs`` maps names to the buffers that hold them. Plan "generate" computes "logits" (R, V), "next_token_ids" and "token_logprobs" (R,), "top_token_ids" and "top_logprobs" (W, up to 20); plan "embed" computes "embeddings", float32 and not normalised, and plan "classify" computes "scores", float32, for each label. A plan without pages reads complete texts: its embeddings are (B, E), its scores (B, L), or (S, L) if each token has scores. With pages or states they are those of sampled tokens: (R, E), (R, L). Plan "vision" computes "features" (F, E), float32, of the patches of pictures; see `ops/images.py`. Plan "hearing" computes "rows" (S, E), float32: the features of sound. */
export interface PlanEntry {
  readonly inputs: Readonly<Record<string, InputEntry>>;
  readonly states: Readonly<Record<string, BufferEntry>>;
  readonly constants: Readonly<Record<string, ConstantEntry>>;
  readonly buffers: Readonly<Record<string, BufferEntry>>;
  readonly steps: readonly StepEntry[];
  readonly outputs: Readonly<Record<string, string>>;
  readonly gathered: Readonly<Record<string, GatheredEntry>>;
}

/** The buffer at a binding: the step's input or output ``role``, and the ``plane`` if it is a weight. Role "scratch" is the manifest's scratch buffer that ``plane`` names. */
export interface BindingEntry {
  readonly role: string;
  readonly plane: string | null;
  readonly access: "read" | "write";
}

/** One kernel: the output of its ``template`` for its ``facts``. Both determine its name. ``uniforms`` are the 32-bit integers of its uniform buffer, which follows the last of ``bindings``. ``grid`` counts workgroups in x and y. If x exceeds 65,535, the rest is dispatched in z: the kernel computes z * gridDim.x + x. In a CPU's shared library, ``entry`` is a function with TVM FFI's calling convention: addresses of the bindings, then the uniforms. On CUDA, a launch adds ``shared_bytes`` of workgroup memory to what the kernel declares; elsewhere they are 0. */
export interface KernelEntry {
  readonly template: string;
  readonly facts: Readonly<Record<string, unknown>>;
  readonly file: string;
  readonly sha256: string;
  readonly entry: string;
  readonly bindings: readonly BindingEntry[];
  readonly uniforms: readonly Expr[];
  readonly grid: readonly Expr[];
  readonly workgroup_size: number;
  readonly shared_bytes: number;
}

/** One way to run a step: ``kernels`` in order. A runtime uses the first one that fits. A later one with the same condition is an alternative that a tuner may put first. ``activation`` None fits all dtypes; ``when`` None fits every batch. ``needs`` lists features of the device ("subgroups", "avx512"), of its shading language ("subgroup_id", "packed_4x8_integer_dot_product"), and its vendor ("vendor-intel"). */
export interface VariantEntry {
  readonly kernels: readonly string[];
  readonly activation: "float32" | "float16" | "bfloat16" | "int8" | null;
  readonly needs: readonly string[];
  readonly when: Condition;
}

/** An activation dtype, and the features that it needs, as `VariantEntry` lists them. Without them, a runtime uses the next entry. */
export interface ActivationEntry {
  readonly dtype: "float32" | "float16" | "bfloat16" | "int8";
  readonly needs: readonly string[];
}

/** The location of a module's low-rank matrices: A is in rows [part * rank, ..) of state ``a``, B in rows [start, stop) of state ``b``. The stored rows of B start at its row ``first_row`` and are multiplied by ``factor``. With ``pairs``, rows are counted and stored in the order of the rotate-half form. */
export interface LoraModule {
  readonly a: string;
  readonly b: string;
  readonly part: number;
  readonly start: number;
  readonly stop: number;
  readonly first_row: number;
  readonly factor: number;
  readonly pairs: RotaryPairs | null;
}

/** LoRA adapters up to a ``rank``. ``modules`` have the names of the checkpoint: "model.layers.0.self_attn.q_proj". A module whose rows belong to several projections has an entry for each of them. */
export interface LoraEntry {
  readonly rank: number;
  readonly modules: Readonly<Record<string, readonly LoraModule[]>>;
}

/** How a model writes tool calls: ``begin``, one call or more with ``separator`` between them, ``end``. A call is ``before_name``, its name, ``before_arguments``, its arguments and ``after_arguments``. ``separator`` is None if an answer has only one call. ``arguments`` is the syntax of the arguments: "json", "gemma" (bare keys, and strings between <|"|>) or "xml" (<parameter=key> elements). ``gap`` and any text may precede ``before_arguments``. Every ``marker`` in an answer begins calls; if it is "", the entire answer is calls or none, and ``lead`` may precede them. After a call, the text up to ``close`` is ignored. ``tokens`` are part of an answer's text even if they are special tokens. */
export interface ToolFormatEntry {
  readonly name: string;
  readonly marker: string;
  readonly begin: string;
  readonly before_name: string;
  readonly before_arguments: string;
  readonly after_arguments: string;
  readonly separator: string | null;
  readonly end: string;
  readonly close: string;
  readonly arguments: "json" | "gemma" | "xml";
  readonly lead: string;
  readonly gap: string;
  readonly tokens: readonly string[];
}

/** The syntax ``tree`` of a chat template (`text/template_tree.py`), and the hash of the template's text in UTF-8. ``content`` is the form in which the template reads the content of a message. */
export interface ChatTreeEntry {
  readonly tree: readonly unknown[];
  readonly template_sha256: string;
  readonly content: "text" | "parts";
}

/** ``chat_template`` is Hugging Face's Jinja template; None if the model has none. Templates may use the tokens. ``chat_tree`` is what browsers evaluate; None if the template has a tag that a tree cannot state. ``add_bos_token`` None: the tokenizer's file determines whether a text starts with the bos token. ``tools`` is the format of tool calls; None if the chat template has no tools or writes calls in an unknown format. */
export interface TokenizerEntry {
  readonly file: string;
  readonly chat_template: string | null;
  readonly chat_tree: ChatTreeEntry | null;
  readonly bos_token: string | null;
  readonly eos_token: string | null;
  readonly pad_token: string | null;
  readonly unk_token: string | null;
  readonly add_bos_token: boolean | null;
  readonly tools: ToolFormatEntry | null;
}

/** The reference's results for row ``row`` of the prompt: the ``logits`` of ``token_ids``, and log(sum(exp(logits))) over all tokens. */
export interface SelfTestRow {
  readonly row: number;
  readonly token_ids: readonly number[];
  readonly logits: readonly number[];
  readonly logsumexp: number;
}

/** A prompt, and the reference's results for it with float32 activations. ``tolerances``: the allowed error for each activation dtype, relative to the largest magnitude among all ``rows``. */
export interface SelfTestEntry {
  readonly prompt_ids: readonly number[];
  readonly rows: readonly SelfTestRow[];
  readonly tolerances: Readonly<Record<string, number>>;
}

/** The reference's results in row ``row`` of a plan's output: the ``values`` of ``elements``. */
export interface VectorTestRow {
  readonly row: number;
  readonly elements: readonly number[];
  readonly values: readonly number[];
}

/** Texts, and the reference's results for a batch of them with float32 activations. ``tolerances``: for each activation dtype, the allowed length of the difference from a row's values, relative to the largest length of any row's values. A difference d of vectors of one length bounds their cosine by 1 - d^2 / 2. */
export interface VectorTestEntry {
  readonly texts: readonly (readonly number[])[];
  readonly rows: readonly VectorTestRow[];
  readonly tolerances: Readonly<Record<string, number>>;
}

/** The reference's features of the patches or the frames of `runtime/feature_test.py`, with float32 activations. ``tolerances``: as those of `VectorTestEntry`. */
export interface FeatureTestEntry {
  readonly rows: readonly VectorTestRow[];
  readonly tolerances: Readonly<Record<string, number>>;
}

/** A GPU as browsers name it (W3C, WebGPU, GPUAdapterInfo). A value that a browser does not reveal is "". */
export interface AdapterEntry {
  readonly vendor: string;
  readonly architecture: string;
  readonly device: string;
  readonly description: string;
}

/** If ``when`` holds, ``variant`` is the fastest of the list. Its name is the names of its kernels joined with "+". */
export interface TunedRow {
  readonly when: Condition;
  readonly variant: string;
}

/** The milliseconds of a step that samples ``rows`` rows of one sequence. */
export interface StepTime {
  readonly rows: number;
  readonly ms: number;
}

/** What a step costs that checks drafts: ``steps`` of one row and of more, in this order, each read before the next one is submitted. ``ahead_ms``: a step of one row that is submitted before earlier ones are read, as without drafts. */
export interface DecodeTimes {
  readonly ahead_ms: number;
  readonly steps: readonly StepTime[];
}

/** The sizes of complete steps that suit an adapter: ``chunk`` tokens of prompts; and the times of ``decode``, from which the number of drafts follows. What was not measured is None. */
export interface TunedSteps {
  readonly chunk: number | null;
  readonly decode: DecodeTimes | null;
}

/** The measurements on one adapter with one activation dtype: variants to put in front of some lists, and the sizes of steps. Records of earlier releases have no ``steps``. */
export interface TuningEntry {
  readonly adapter: AdapterEntry;
  readonly activation: "float32" | "float16" | "bfloat16" | "int8";
  readonly variants: Readonly<Record<string, readonly TunedRow[]>>;
  readonly steps: TunedSteps | null;
}

/** The part of the manifest that all bundles share. ``context``: the longest sequence in tokens. ``page_size``: tokens per page. ``quantization`` is that of the matrices that name no other. ``kv`` is the format of keys and values: "activation", as computed, "q8" or "q4", 8-bit or 4-bit integers, or "fp8", 8-bit floats (E4M3). The model makes vectors if ``embedding`` is given, scores if ``classifier`` is, transcripts of sound if ``speech`` or ``ctc`` is, and otherwise generates text. ``images`` is None if it reads no pictures, ``sounds`` if it does not hear. ``prefixes`` are starts of prompts that need not be computed. Bundles of earlier releases have none, and ``origin`` is None. */
export interface Description {
  readonly format_version: number;
  readonly generator: string;
  readonly target: string;
  readonly model: string;
  readonly spec: ModelSpec;
  readonly embedding: EmbeddingSpec | null;
  readonly classifier: ClassifierSpec | null;
  readonly images: ImageSpec | null;
  readonly sounds: SoundSpec | null;
  readonly speech: SpeechSpec | null;
  readonly ctc: CtcSpec | null;
  readonly quantization: string;
  readonly context: number;
  readonly page_size: number;
  readonly kv: "activation" | "q8" | "q4" | "fp8";
  readonly tokenizer: TokenizerEntry;
  readonly files: readonly FileEntry[];
  readonly origin: OriginEntry | null;
  readonly prefixes: readonly PrefixEntry[];
}

/** A bundle in a framework's own format, which the framework's own tools load. ``files`` are all its files. A page holds a complete sequence: ``page_size`` is ``context``. ``device`` is the device that the graph was made for, None if the framework has no choice. ``activation`` is the dtype of activations, keys and values. ``group_size`` is the number of weights that share a scale, None if they are not quantized. */
export interface ExportManifest extends Description {
  readonly kv: "activation" | "q8";
  readonly device: string | null;
  readonly activation: "float32" | "float16" | "bfloat16";
  readonly group_size: number | null;
}

/** A bundle with plans and kernels. ``files`` are all files except kernels and shards. ``plans`` has one entry for each task of the bundle: to "generate" text, to "embed" or to "classify" it, to "draft" tokens of a text that it generates, "vision" to make features of a picture's patches, "hearing" to make them of frames of sound, "audio" to read sound, and "ctc" to score the tokens of its rows. A name means the same array in all plans, so plans share weights, constants and states, including the pages of keys and values. ``arch`` is the architecture that the kernels were compiled for, None if they are source code for any device of the target. Keys and values are states. "activation": pages (P, 2, K, page_size, D) of the activation dtype, keys, then values. In a plan with two page groups, the layers with a window have PW pages instead of P; see `ir/pages`. "q8": (P, 2, K, page_size, D/4 + 1) uint32: for each page, plane and kv head, D int8 codes of every row, four per word, the first in the lowest bits, then the bits of every row's float32 scale. "q4": (.., D/8 + 1): codes plus 8, eight per word, element b in the low half of byte b and element b + 4 in the high half; keys are multiplied by a Hadamard matrix first, and so are queries. "fp8": as "q8", with E4M3 floats instead of integers. Recurrent layers have states (Z, ..) float32, one row for each of Z slots. The input "state_slots" (B, 2) says from which slot each sequence's states are read, and into which they are written; see `ir/ops/states.py`. ``host_weights`` are matrices that stay in their files: a runtime reads only the rows that it gathers. Their layout is "rows", and their shards hold nothing else. ``scratch`` are buffers through which the kernels of one step pass values; all steps share them. ``self_test`` is None if the user disabled it, and for models that generate no text, which have ``vector_test``; models that see pictures have ``vision_test`` too, and those that hear ``hearing_test``. ``tuning`` has one entry per adapter and activation dtype. ``lora`` is None if the bundle does not accept adapters. */
export interface Manifest extends Description {
  readonly arch: string | null;
  readonly lora: LoraEntry | null;
  readonly activations: readonly ActivationEntry[];
  readonly plans: Readonly<Record<string, PlanEntry>>;
  readonly variants: Readonly<Record<string, readonly VariantEntry[]>>;
  readonly scratch: Readonly<Record<string, BufferEntry>>;
  readonly kernels: Readonly<Record<string, KernelEntry>>;
  readonly weights: Readonly<Record<string, WeightEntry>>;
  readonly host_weights: Readonly<Record<string, WeightEntry>>;
  readonly shards: readonly FileEntry[];
  readonly self_test: SelfTestEntry | null;
  readonly vector_test: VectorTestEntry | null;
  readonly vision_test: FeatureTestEntry | null;
  readonly hearing_test: FeatureTestEntry | null;
  readonly tuning: readonly TuningEntry[];
}
