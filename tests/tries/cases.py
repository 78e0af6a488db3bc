"""The errors that follow.py follows: name, command that fails, and {words of the `try:`: what they tell to do} for prose."""

from task_cases import TASK_CASES

TINY = ("model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 train.seq_length=16 train.micro_batch_size=1 "
        "train.global_batch_size=2 train.num_threads=1 logger.peak_tflops=1 logger.tensorboard=false kernels=order "
        "train.train_iters=2 ")
MOCK = f"pentatron train {TINY} dataset.type=mock model.vocab_size=300 checkpoint.save=new "
TEXT = f"pentatron train {TINY} dataset.type=text dataset.path=texts.jsonl model.vocab_size=300 checkpoint.save=new "
INDEXED = f"pentatron train {TINY} dataset.type=indexed dataset.path=corpus_text_document model.vocab_size=300 checkpoint.save=new "
ENCODER = TINY + "model.type=bert dataset.type=bert dataset.path=texts.jsonl"
LLAMA = "$DATA/hf_tiny/llama"
EVALUATE = f"pentatron evaluate --hf {LLAMA} --batches {LLAMA}/expected.safetensors "
GENERATE = "pentatron generate saved --tokens 1,2 --max-new-tokens 2 "
HIDDEN = "pentatron evaluate --hf $DATA/hf_tiny/bert_model --batches $DATA/hf_tiny/bert_model/expected.safetensors "
T5 = "pentatron evaluate MODEL --batches $DATA/hf_tiny/t5/expected.safetensors"
SFT = f"pentatron train {TINY.replace('seq_length=16', 'seq_length=96')} dataset.type=sft model.vocab_size=300 checkpoint.save=new "
FINETUNE = "pentatron finetune texts texts.jsonl --out new train.num_threads=1 logger.peak_tflops=1 logger.tensorboard=false kernels=order train.train_iters=2 "
SAMPLES = "pentatron inspect samples --prefix corpus_text_document --sequence-length 8 "
CONVERSATIONS = "pentatron inspect samples --sft texts.jsonl --tokenizer bytes --index 0 "
RUN_SAMPLES = "pentatron inspect samples dataset.type=bert dataset.path=texts.jsonl train.seq_length=16 --index 0"
LIST = '["corpus_text_document"]'
PARTS = '{"train": ["corpus_text_document"], "valid": ["corpus_text_document"]}'
CORPUS = "pentatron preprocess --input texts.jsonl --tokenizer bytes --output corpus --append-eod"
CLASSIFIER = f"pentatron train {TINY} model.type=bert model.head=classification model.num_labels=3 checkpoint.save=new"
TASKS = "--tasks $DATA/evaluation/yes_no.yaml eval.limit=1 eval.max_length=8"
ADAPTED = f"pentatron evaluate {LLAMA} --batches {LLAMA}/expected.safetensors --adapter "
ADAPTED_RUN = (f"pentatron train --hf {LLAMA} dataset.type=mock {TINY[TINY.index('train.seq_length'):]}"
               "peft.load=adapted/adapter checkpoint.save=new")
# A tokenizer with fewer tokens than the tiny models.
LETTERS = ("python3 -c \"import json; json.dump({'model': {'type': 'BPE', 'vocab': {chr(i): i - 33 for i in range(33, 127)}, 'merges': []}, 'pre_tokenizer': "
           "{'type': 'ByteLevel', 'add_prefix_space': False}, 'decoder': {'type': 'ByteLevel'}, 'added_tokens': []}, open('letters.json', 'w'))\"; ")
BATCH = f"pentatron evaluate texts --batches {LLAMA}/expected.safetensors "


# Servers that end by themselves; the model of adapters with a tokenizer of its own.
SERVE = "$SOURCE/tests/support/until_served.sh pentatron serve talk kernels=order train.num_threads=1 --port 0 "
SPEAKER = "cp -rL $DATA/hf_tiny/llama speaker; chmod -R u+w speaker; cp mute/tokenizer.json speaker/; "
ADAPTED_SERVER = (SPEAKER +
                  "$SOURCE/tests/support/until_served.sh pentatron serve speaker kernels=order train.num_threads=1 --port 0 ")
ASKED = SPEAKER + "pentatron generate speaker --max-new-tokens 2 --prompt-file asks.jsonl --adapter "
TOKEN = "echo 0123456789abcdef0123 > token; chmod 600 token; "


def launched(*variables):
    """Two processes of a run, each with the variables that a launcher sets; $r is the number of the process."""
    command = MOCK.replace("checkpoint.save=new", "checkpoint.save=new parallel.tensor_model_parallel_size=2")
    return ("export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) PENTATRON_JOB_SECRET=0123456789abcdef0123456789abcdef; "
            f"for r in 0 1; do env {' '.join(variables)} {command} & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit 1; done")


TORCHRUN = launched("RANK=$r", "WORLD_SIZE=2", "LOCAL_RANK=$r", "LOCAL_WORLD_SIZE=2")
SRUN = launched("SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=$r", "SLURM_NTASKS=2", "SLURM_LOCALID=$r", "SLURM_NODEID=0",
                "SLURM_TASKS_PER_NODE=2", "SLURM_NNODES=1")

# Everything that the cases read; made once.
PREPARE = f"""set -e
for i in $(seq 60); do
  echo "{{\\"text\\": \\"the loss falls slowly, then it rises $i\\"}}" >> texts.jsonl
  echo "the loss falls slowly, then it rises $i" >> words.txt
done
pentatron preprocess --input texts.jsonl --tokenizer bytes --output corpus --append-eod
{MOCK.replace("checkpoint.save=new", "checkpoint.save=saved checkpoint.save_interval=1 logger.dir=log")}
{TEXT.replace("checkpoint.save=new", "checkpoint.save=texts")}
{MOCK.replace("checkpoint.save=new", "checkpoint.save=balanced model.num_moe_experts=4 model.moe_router_enable_expert_bias=true")}
{MOCK.replace("checkpoint.save=new", "checkpoint.save=parity checkpoint.parity=1")}
{MOCK.replace("checkpoint.save=new", "checkpoint.save=further model.mtp_num_layers=1")}
pentatron train {ENCODER} model.binary_head=false dataset.bert_binary_head=none checkpoint.save=encoder
python3 - <<'DAMAGE'
import glob
name = sorted(glob.glob("parity/step_*/model_*.safetensors"))[0]
data = bytearray(open(name, "rb").read())
data[-5] ^= 1
open(name, "wb").write(data)
DAMAGE
pentatron train --hf $DATA/hf_tiny/gpt_oss train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=1 train.train_iters=1 dataset.type=mock \
  checkpoint.save=limited model.activation_func_clamp_value=5 train.num_threads=1 logger.peak_tflops=1 kernels=order
pentatron train --hf $DATA/hf_tiny/llama train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=1 train.train_iters=1 dataset.type=mock \
  checkpoint.save=adapted checkpoint.export_hf=true peft.type=lora train.num_threads=1 logger.peak_tflops=1 kernels=order
pentatron train --hf $DATA/hf_tiny/llama train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=1 train.train_iters=1 dataset.type=mock \
  checkpoint.save=retrained checkpoint.export_hf=true peft.type=lora peft.modules_to_save=[lm_head] train.num_threads=1 logger.peak_tflops=1 kernels=order
{MOCK.replace("checkpoint.save=new", "checkpoint.save=beside peft.type=lora")}
cp -r $DATA/hf_tiny/llama going
pentatron train --hf going train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=1 train.train_iters=1 dataset.type=mock \
  checkpoint.save=orphans peft.type=lora train.num_threads=1 logger.peak_tflops=1 kernels=order
rm -r going
pentatron tokenize --train-bpe 290 --output other.json < words.txt
mkdir odd pickled pictures nothing_in_it mine speaking mute
for i in $(seq 8); do echo "{{\\"text\\": \\"a $i\\", \\"label\\": \\"glad\\"}}"; echo "{{\\"text\\": \\"b $i\\", \\"label\\": \\"sad\\"}}"; done > labels.jsonl
cp labels.jsonl more.jsonl
for i in $(seq 60); do echo "{{\\"messages\\": [{{\\"role\\": \\"user\\", \\"content\\": \\"Say $i\\"}}, {{\\"role\\": \\"assistant\\", \\"content\\": \\"$i\\"}}]}}"; done > chats.jsonl
echo '{{"text": "c", "label": "bored"}}' >> more.jsonl
pentatron train {TINY} model.type=bert model.head=classification model.num_labels=3 dataset.train_data_path=labels.jsonl checkpoint.save=labels
python3 - <<'BATCH'
import json, struct
ids = struct.pack("<8q", *range(60, 68))
head = json.dumps({{name: {{"dtype": "I64", "shape": [1, 8], "data_offsets": [at, at + 64]}} for name, at in (("input_ids", 0), ("labels", 64))}}).encode()
for name, dtype in (("flat", "F32"), ("whole", "I64")):
    flat = json.dumps({{"x": {{"dtype": dtype, "shape": [16] if dtype == "F32" else [1, 8], "data_offsets": [0, 64]}}}}).encode()
    open(name + ".safetensors", "wb").write(struct.pack("<Q", len(flat)) + flat + bytes(64))
open("masked.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + 2 * ids)
BATCH
pentatron tokenize --train-bpe 290 --output mute/tokenizer.json < words.txt
cp mute/tokenizer.json speaking/
echo '{{"chat_template": "{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"}}' > speaking/tokenizer_config.json
{TEXT.replace("checkpoint.save=new", "tokenizer.path=speaking checkpoint.save=talk")}
{TEXT.replace("checkpoint.save=new", "tokenizer.path=mute checkpoint.save=silent")}
echo mine > mine/config.yaml
echo '{{"model_type": "bert", "vocab_size": 67, "architectures": ["BertForTokenClassification"]}}' > odd/config.json
cp {LLAMA}/config.json pickled/
mkdir bare
cp {LLAMA}/config.json bare/
echo '[5]' > bad.json
echo x > pickled/pytorch_model.bin
echo x > model.pt
echo x > pictures/cat.png
echo x > notes.txt
echo '{{"prompt": 5}}' > bad.jsonl
: > empty.txt
printf 'seed: 5\\n' > a.yaml
printf 'seed: 6\\n' > b.yaml
for i in $(seq 60); do echo "{{\\"id\\": $i, \\"text\\": \\"the loss falls slowly $i\\"}}"; done > numbered.jsonl
cp texts.jsonl mixed.jsonl
echo "no json" >> mixed.jsonl
"""



def adapter(change, told):
    """A change of adapter_config.json that is refused, and the words that tell to do without it."""
    return (f"sed -i '{change}' adapted/adapter/adapter_config.json; {ADAPTED}adapted/adapter", {told: ADAPTED + "adapted/adapter"})


CASES = TASK_CASES + [
    # a key without text
    ("numbers to preprocess", "pentatron preprocess --input numbered.jsonl --json-keys id --tokenizer bytes --output new", {}),
    ("numbers for a tokenizer", "pentatron tokenize --train-bpe 290 --input numbered.jsonl --json-keys id --output new.json", {}),
    ("numbers to evaluate", "pentatron evaluate texts --file numbered.jsonl --text-key id", {}),
    ("numbers to train on", f"{TEXT.replace('texts.jsonl', 'numbered.jsonl')} dataset.text_key=id", {}),
    # not a configuration
    ("data as a configuration", f"{TEXT.replace('dataset.path=texts.jsonl', 'texts.jsonl')}", {"dataset.path=texts.jsonl": TEXT}),
    ("a configuration beside a model", EVALUATE.replace("--hf ", "") + " a.yaml", {}),
    ("a file beside other input", EVALUATE.replace("--hf ", "") + " words.txt", {}),
    ("buckets on one rank", f"{MOCK} ddp.bucket_size=5", {}),
    ("a dotted key in YAML", f"printf 'model.num_layers: 1\\n' > d.yaml; {MOCK} d.yaml", {
        "model: {num_layers: 1}": f"printf 'model: {{num_layers: 1}}\\n' > d.yaml; {MOCK} d.yaml"}),
    ("an open brace in YAML", f"printf 'model: {{num_layers: 1\\n' > d.yaml; {MOCK} d.yaml", {
        "lines such as": f"printf 'model:\\n  num_layers: 1\\n' > d.yaml; {MOCK} d.yaml"}),
    ("no batches", EVALUATE.replace("expected.safetensors", "none.safetensors"), {"--batches FILE.safetensors": EVALUATE}),
    # memory
    ("no folder for activations", f"{MOCK} offload.activations=true offload.num_layers=1 offload.dir=/proc/version/x", {}),
    ("no folder for optimizer state", f"{MOCK} offload.optimizer=true offload.dir=/proc/x train.check_memory=false", {}),
    ("activations of one layer", f"{MOCK} offload.activations=true offload.dir=away", {}),
    ("a disk too small for optimizer state", f"{MOCK} offload.optimizer=true offload.dir=away model.num_layers=100000 model.hidden_size=16384 "
                                             "train.check_memory=false --dry-run", {
        "offload.dir=FOLDER on a larger disk": f"{MOCK} offload.optimizer=true offload.dir=away"}),
    ("a disk too small for checkpoints", MOCK.replace("train.train_iters=2", "train.train_iters=9") + "model.num_layers=100000 model.hidden_size=16384 "
                                         "checkpoint.save_interval=1 train.check_memory=false --dry-run", {
        "checkpoint.save=FOLDER on a larger disk": MOCK.replace("checkpoint.save=new", "checkpoint.save=away")}),
    ("no folder named for optimizer state", MOCK + "offload.optimizer=true", {}),
    ("a fraction of nothing", MOCK + "offload.optimizer_fraction=0.5", {}),
    ("a folder for nothing", MOCK + "offload.dir=away", {}),
    ("an optimizer without state", MOCK + "offload.optimizer=true offload.dir=away optimizer.optimizer=sgd optimizer.sgd_momentum=0", {}),
    # adapters
    ("an adapter of rank 0", *adapter('s/"r": [0-9]*/"r": 0/', "an adapter with r of at least 1")),
    ("an adapter with biases", *adapter('s/"bias": "none"/"bias": "all"/', "an adapter without it")),
    ("an adapter of one of two copies of a weight", "cp -rL $DATA/peft_curves/llama_tied_modules half; chmod -R u+w half; "
     "sed -i 's/\"ensure_weight_tying\": true/\"ensure_weight_tying\": false/' half/adapter_config.json; " + ADAPTED.replace("hf_tiny/llama", "hf_tiny/llama3_rope_scaling_tied") + "half", {
         "ensure_weight_tying=True": ADAPTED.replace("hf_tiny/llama", "hf_tiny/llama3_rope_scaling_tied") + "$DATA/peft_curves/llama_tied_modules"}),
    ("another method", *adapter('s/LORA/IA3/', "a LoRA or DoRA adapter")),
    ("an adapter of experts by rules", "python3 -c \"import json; f = 'adapted/adapter/adapter_config.json'; c = json.load(open(f)); "
     f"c['exclude_modules'] = ['x']; c['target_parameters'] = ['mlp.experts']; json.dump(c, open(f, 'w'))\"; {ADAPTED}adapted/adapter", {
         "a list of names": "python3 -c \"import json; f = 'adapted/adapter/adapter_config.json'; c = json.load(open(f)); "
         f"c['exclude_modules'] = c['target_parameters'] = None; json.dump(c, open(f, 'w'))\"; {ADAPTED}adapted/adapter"}),
    ("an adapter with a name", ADAPTED + "a=adapted", {}),
    ("a run's folder as an adapter of PEFT", ADAPTED_RUN.replace("adapted/adapter", "adapted"), {"adapted/adapter": ADAPTED_RUN}),
    ("no adapter", ADAPTED + "nothing_in_it", {"save_pretrained": ADAPTED + "adapted/adapter"}),
    ("no folder of an adapter", ADAPTED + "nowhere", {"the folder of an adapter": ADAPTED + "adapted/adapter"}),
    ("an adapter to train that has another rank", "sed -i 's/\"r\": [0-9]*/\"r\": 0/' adapted/adapter/adapter_config.json; " + ADAPTED_RUN, {
        "an adapter for this model": ADAPTED_RUN}),
    ("tensors of another adapter", f"cp --remove-destination $DATA/peft_curves/llama_dora/adapter_model.safetensors adapted/adapter/; {ADAPTED_RUN}", {
        "an adapter for this model": ADAPTED_RUN}),
    ("adapters without names", "pentatron generate $DATA/hf_tiny/llama --tokens 1,2 --max-new-tokens 2 --adapter adapted --adapter adapted/adapter", {
        "--adapter a=": "pentatron generate $DATA/hf_tiny/llama --tokens 1,2 --max-new-tokens 2 --adapter a=adapted --adapter b=adapted/adapter"}),
    ("a prompt for an adapter without a name", "echo '{\"prompt\": \"a\", \"adapter\": 3}' > asks.jsonl; " + ASKED + "a=adapted", {
        '"adapter": "NAME"}': "echo '{\"prompt\": \"a\", \"adapter\": \"a\"}' > asks.jsonl; " + ASKED + "a=adapted",
        "null for the model alone": "echo '{\"prompt\": \"a\", \"adapter\": null}' > asks.jsonl; " + ASKED + "a=adapted"}),
    ("a prompt for another adapter", "echo '{\"prompt\": \"a\", \"adapter\": \"b\"}' > asks.jsonl; " + ASKED + "a=adapted", {
        "--adapter b=DIR": "echo '{\"prompt\": \"a\", \"adapter\": \"b\"}' > asks.jsonl; " + ASKED + "b=adapted"}),
    ("a pickled adapter", "mv adapted/adapter/adapter_model.safetensors adapted/adapter/adapter_model.bin; " + ADAPTED + "adapted/adapter", {
        "save_pretrained": ADAPTED + "adapted/adapter"}),
    ("a whole model as an adapter", ADAPTED + "limited", {"without --adapter": "pentatron evaluate limited --batches $DATA/hf_tiny/gpt_oss/expected.safetensors"}),
    ("an adapter of another model", ADAPTED.replace("hf_tiny/llama --", "hf_tiny/gpt2 --") + "adapted/adapter", {
        "that it was trained for": ADAPTED + "adapted/adapter", "an adapter of these modules": ADAPTED + "adapted/adapter"}),
    ("a checkpoint of adapters of another model", ADAPTED.replace("hf_tiny/llama --", "hf_tiny/gpt2 --") + "adapted", {"the model that the run started from": ADAPTED + "adapted"}),
    ("adapters beside initial weights", "pentatron generate beside --tokens 1,2 --max-new-tokens 2", {
        "a run with checkpoint.load": "pentatron generate adapted --tokens 1,2 --max-new-tokens 2"}),
    ("adapters without their model", "pentatron generate orphans --tokens 1,2", {
        "with the model": f"pentatron generate {LLAMA} --adapter orphans --tokens 1,2 --max-new-tokens 2"}),
    ("weights of a model with an output layer for a tied one", f"pentatron train {TINY[TINY.index('train.seq'):]} dataset.type=mock checkpoint.load=hf:{LLAMA} "
     "model.untie_embeddings_and_output_weights=false checkpoint.save=new", {}),
    ("a model to resume as adapters", MOCK + "checkpoint.load=saved peft.type=lora", {}),
    # trainer
    ("split", TEXT + "dataset.split=0,100", {
        "more text": TEXT + "dataset.split=95,5,0", "another dataset.split": TEXT + "dataset.split=95,5,0"}),
    ("longer than the text", TEXT.replace("train.seq_length=16", "train.seq_length=9000 model.max_position_embeddings=9000"), {
        "more text": TEXT, "another dataset.split": TEXT}),
    ("data of another head", f"pentatron train {ENCODER} dataset.bert_binary_head=none", {}),
    ("a type of token that the model lacks", f"pentatron train {ENCODER} model.num_tokentypes=1", {}),
    ("sentences too short for pairs", f"pentatron train {ENCODER} train.seq_length=4", {}),
    ("data of another model", TEXT.replace("dataset.type=text", "dataset.type=bert"), {}),
    ("few open files", "(ulimit -n 6; " + MOCK + "--ranks 2 --backend sockets ddp.zero_stage=1)", {"ulimit -n": MOCK + "--ranks 2 --backend sockets ddp.zero_stage=1"}),
    ("no manifest", "rm saved/step_*/manifest.json; " + MOCK + "checkpoint.load=saved train.train_iters=3", {
        "a copy of one of them in its place": "rm saved/step_00000001/manifest.json; " + MOCK + "checkpoint.load=saved train.train_iters=3",
        "another folder with checkpoints": MOCK + "checkpoint.load=saved train.train_iters=3"}),
    ("no folder for MLflow", MOCK + "logger.dir=other logger.mlflow_experiment=a logger.mlflow_dir=notes.txt/below", {
        "another logger.mlflow_dir": MOCK + "logger.dir=other logger.mlflow_experiment=a logger.mlflow_dir=runs"}),
    ("a cache that cannot be written", INDEXED + "dataset.order=megatron dataset.data_cache_path=notes.txt/below --ranks 2 --backend sockets", {
        "another dataset.data_cache_path": INDEXED + "dataset.order=megatron dataset.data_cache_path=cached --ranks 2 --backend sockets"}),
    ("words of unknown ranks", "head -300 $DATA/tokenizers/cl100k_small.tiktoken > odd.tiktoken; pentatron preprocess --input texts.jsonl --tokenizer odd.tiktoken --output odd_ones", {
        "--pattern gpt2": "head -300 $DATA/tokenizers/cl100k_small.tiktoken > odd.tiktoken; pentatron preprocess --input texts.jsonl --tokenizer odd.tiktoken --output odd_ones --pattern gpt2",
        "a regular expression": "head -300 $DATA/tokenizers/cl100k_small.tiktoken > odd.tiktoken; pentatron preprocess --input texts.jsonl --tokenizer odd.tiktoken --output odd_ones --pattern '\\w+|\\s+'"}),
    ("no checkpoint", MOCK + "checkpoint.load=nothing", {}),
    ("another model", MOCK + "checkpoint.load=saved model.hidden_size=64", {}),
    ("RoBERTa as a type", f"pentatron train {ENCODER} checkpoint.save=new".replace("model.type=bert", "model.type=roberta"), {
        "--hf DIR": f"pentatron convert encoder hf --format hf; pentatron train --hf hf {ENCODER} dataset.bert_binary_head=none checkpoint.save=new"}),
    ("a T5 without a decoder", "cp -rL $DATA/hf_tiny/t5 part; chmod -R u+w part; sed -i s/T5ForConditionalGeneration/T5EncoderModel/ part/config.json; " + T5.replace("MODEL", "part"), {
        "T5ForConditionalGeneration.save_pretrained(DIR)": T5.replace("MODEL", "$DATA/hf_tiny/t5")}),
    ("a T5 with an unknown activation", "cp -rL $DATA/hf_tiny/t5 odd_one; chmod -R u+w odd_one; sed -i 's/\"feed_forward_proj\": \"[a-z-]*\"/\"feed_forward_proj\": \"foo\"/' "
     "odd_one/config.json; " + T5.replace("MODEL", "odd_one"), {
         "feed_forward_proj=NAME": T5.replace("MODEL", "$DATA/hf_tiny/t5")}),
    ("another type of model", "pentatron train checkpoint.load=encoder train.micro_batch_size=1 train.global_batch_size=2 train.num_threads=1 logger.peak_tflops=1 "
     "train.seq_length=16 train.train_iters=3 kernels=order dataset.path=texts.jsonl dataset.type=bert dataset.bert_binary_head=none", {}),
    ("another run's checkpoints", MOCK.replace("=new", "=saved"), {}),
    ("a folder with the name of a checkpoint", "mkdir -p new/step_00000001; touch new/step_00000001/mine; " + MOCK, {
        "move new/step_00000001": "mv new/step_00000001 moved; " + MOCK}),
    ("another run's metrics", MOCK + "logger.dir=log", {}),
    ("checkpoints into another run's metrics", MOCK.replace("=new", "=log"), {}),
    ("metrics into another run's checkpoints", MOCK + "logger.dir=saved", {}),
    ("a file of the user", MOCK + "logger.dir=mine", {}),
    ("no CUDA", MOCK + "device=cuda", {}),
    ("GPU", MOCK + "device=gpu", {}),
    ("not saved", MOCK.replace("checkpoint.save=new", ""), {}),
    ("ZeRO on one rank", MOCK + "ddp.zero_stage=1", {}),
    ("experts in no layer", MOCK + "model.num_moe_experts=4 model.moe_layer_freq=[0]", {}),
    ("a router that is not trained", MOCK + "model.num_moe_experts=4 model.moe_router_topk=1", {}),
    ("exchange of context ranks on one rank", MOCK + "parallel.cp_comm_type=[a2a]", {}),
    ("ranks of three axes", MOCK + "parallel.context_parallel_size=2 --ranks 3", {}),
    ("context ranks of pairs", f"pentatron train {ENCODER} parallel.context_parallel_size=2 --ranks 2 checkpoint.save=new", {}),
    ("context ranks of a short sample", MOCK + "parallel.context_parallel_size=4 train.seq_length=6 --ranks 4", {}),
    ("an exchange for each layer", MOCK + "parallel.context_parallel_size=2 parallel.cp_comm_type=[p2p,p2p] --ranks 2", {}),
    ("an exchange of fewer heads", MOCK + "parallel.context_parallel_size=4 parallel.cp_comm_type=[a2a] --ranks 4", {}),
    ("neighbours without a size", MOCK + "parallel.context_parallel_size=4 parallel.cp_comm_type=[a2a+p2p] --ranks 4", {}),
    ("neighbours of no exchange", MOCK + "parallel.context_parallel_size=4 parallel.hierarchical_context_parallel_sizes=[2,2] --ranks 4", {}),
    ("neighbours of one rank", MOCK + "parallel.hierarchical_context_parallel_sizes=[2,2]", {}),
    ("neighbours of two ranks", MOCK + "parallel.context_parallel_size=2 parallel.cp_comm_type=[a2a+p2p] parallel.hierarchical_context_parallel_sizes=[2,2] --ranks 2", {}),
    ("fine-tuning without examples", SFT, {"dataset.path=FILE.jsonl": SFT + "dataset.path=chats.jsonl"}),
    ("fine-tuning on plain text", SFT + "dataset.path=words.txt", {"JSON Lines": SFT + "dataset.path=chats.jsonl"}),
    ("examples of a small vocabulary", SFT + "dataset.path=chats.jsonl model.vocab_size=200", {}),
    ("answers behind the end of a sample", SFT + "dataset.path=chats.jsonl train.seq_length=16", {}),
    ("a file without examples", ": > none.jsonl; echo > none.jsonl; " + SFT + "dataset.path=none.jsonl", {"objects with messages, conversations, prompt and completion, instruction and output, or text": SFT + "dataset.path=chats.jsonl"}),
    ("a tokenizer for nothing", SAMPLES + "--index 0 --tokenizer bytes", {}),
    ("codes over another file", "pentatron inspect quantize --recipe mxfp8_1x32 --in $DATA/kernels/quantize/ties_e2m1.safetensors --out q.safetensors; pentatron inspect quantize --recipe mxfp8_1x32 --in $DATA/kernels/quantize/ties_e2m1.safetensors --out q.safetensors", {"another --out": "pentatron inspect quantize --recipe mxfp8_1x32 --in $DATA/kernels/quantize/ties_e2m1.safetensors --out other.safetensors"}),
    ("codes of a vector", "pentatron inspect quantize --recipe mxfp8_1x32 --in flat.safetensors --out q.safetensors", {
        "x reshaped to [rows, columns]": "pentatron inspect quantize --recipe mxfp8_1x32 --in $DATA/kernels/quantize/ties_e2m1.safetensors --out q.safetensors"}),
    ("codes of whole numbers", "pentatron inspect quantize --recipe mxfp8_1x32 --in whole.safetensors --out q.safetensors", {
        "x as F32": "pentatron inspect quantize --recipe mxfp8_1x32 --in $DATA/kernels/quantize/ties_e2m1.safetensors --out q.safetensors"}),
    ("packed examples by length", SFT + "dataset.path=chats.jsonl dataset.group_by_length=true", {}),
    ("padding without an encoder", SFT + "dataset.path=chats.jsonl dataset.pad_token=a", {}),
    ("a prompt that is no example", TEXT + """logger.sample_prompts='["{\\"a\\": 1}"]'""", {
        '{"messages": [{"role": "user", "content": "Hello"}]}':
            TEXT + """logger.sample_prompts='["{\\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"Hello\\"}]}"]'"""}),
    ("a base in 8 bits in narrow parts", MOCK + "--ranks 2 parallel.tensor_model_parallel_size=2 peft.type=lora peft.base_dtype=int8", {
        "a smaller parallel.tensor_model_parallel_size": MOCK + "peft.type=lora peft.base_dtype=int8"}),
    ("a run in a file", FINETUNE.replace("--out new", "--out words.txt/new"), {}),
    ("no epoch", FINETUNE.replace("train.train_iters=2 ", "") + "--epochs 0", {}),
    ("epochs and iterations", FINETUNE + "--epochs 3", {}),
    ("data twice", FINETUNE + "dataset.path=texts.jsonl", {}),
    ("the folder twice", FINETUNE + "logger.dir=other", {}),
    ("adapters and all weights", FINETUNE + "--all-weights peft.type=lora", {}),
    ("data for validation", FINETUNE + "dataset.valid_data_path=texts.jsonl", {
        "pentatron train": f"pentatron train {TINY} dataset.type=sft dataset.train_data_path=texts.jsonl dataset.valid_data_path=texts.jsonl train.seq_length=96 checkpoint.save=new"}),
    ("a base that is not there", FINETUNE.replace("texts texts", "nobody texts"), {"the folder or file of the model": FINETUNE}),
    ("examples that are not there", FINETUNE.replace("texts.jsonl", "none.jsonl"), {"a .jsonl, .json or .parquet file": FINETUNE, "a folder that contains such files": "mkdir some; cp texts.jsonl some; " + FINETUNE.replace("texts.jsonl", "some")}),
    ("a file behind the data", FINETUNE + "words.txt", {"optimizer.lr=0.0001": FINETUNE + "optimizer.lr=0.0001"}),
    ("finetuning of an encoder", FINETUNE.replace("texts texts", "encoder texts") + "dataset.type=bert", {"pentatron train": f"pentatron train {ENCODER} checkpoint.save=new"}),
    ("examples without answers", "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}' > asked.jsonl; " + SFT + "dataset.path=asked.jsonl", {
        "texts that are not empty": SFT + "dataset.path=texts.jsonl", "assistant": SFT + "dataset.path=chats.jsonl"}),
    ("examples without weight", "sed 's/\"role\": *\"assistant\"/&, \"weight\": 0/' chats.jsonl > light.jsonl; " + SFT + "dataset.path=light.jsonl", {
        '"weight": 1': SFT + "dataset.path=chats.jsonl"}),
    ("examples in long lines", SFT + "dataset.path=chats.jsonl dataset.max_line_bytes=10", {}),
    ("ends of documents that no token is", f"pentatron train {TINY} dataset.type=indexed dataset.path=corpus_text_document model.vocab_size=250 dataset.eod_mask_loss=true checkpoint.save=new", {
        "tokenizer.path": f"pentatron train {TINY} dataset.type=indexed dataset.path=corpus_text_document dataset.eod_mask_loss=true checkpoint.save=new",
        "tokenizer.type=null": f"pentatron train {TINY} dataset.type=indexed dataset.path=corpus_text_document model.vocab_size=260 tokenizer.type=null tokenizer.vocab_size=256 dataset.eod_mask_loss=true checkpoint.save=new"}),
    ("two names of one key", "cp -rL $DATA/hf_tiny/gpt2 twice; chmod -R u+w twice; sed -i 's/\"n_head\"/\"num_attention_heads\": 1, \"n_head\"/' twice/config.json; pentatron generate twice --tokens 1,2 --max-new-tokens 2", {
        "remove one of the two": "pentatron generate $DATA/hf_tiny/gpt2 --tokens 1,2 --max-new-tokens 2"}),
    ("token types of GPT-2", "pentatron evaluate $DATA/hf_tiny/gpt2 --batches $DATA/hf_tiny/bert/expected.safetensors", {
        "a file without": "pentatron evaluate $DATA/hf_tiny/gpt2 --batches $DATA/hf_tiny/gpt2/expected.safetensors"}),
    ("samples of nothing", "pentatron inspect samples --index 0 --sequence-length 8", {"--prefix PREFIX": SAMPLES + "--index 0"}),
    ("examples without a tokenizer", "pentatron inspect samples --sft chats.jsonl --index 0", {"--tokenizer PATH": "pentatron inspect samples --sft chats.jsonl --index 0 --tokenizer bytes"}),
    ("an example that is not there", "pentatron inspect samples --sft chats.jsonl --tokenizer bytes --index 60", {}),
    ("samples of plain text", RUN_SAMPLES.replace("type=bert", "type=text"), {
        "--prefix PREFIX": SAMPLES + "--index 0", "--sft FILE": "pentatron inspect samples --sft chats.jsonl --index 0 --tokenizer bytes"}),
    ("options for the samples of a run", RUN_SAMPLES + " --seed 5", {
        "dataset.seed=5": RUN_SAMPLES + " dataset.seed=5"}),
    ("an order for the samples of a run", RUN_SAMPLES + " --order stable", {}),
    ("samples of a run in Megatron's order", RUN_SAMPLES + " dataset.order=megatron", {}),
    ("samples of no part", RUN_SAMPLES + " --part test", {
        "another dataset.split": RUN_SAMPLES + " --part test dataset.split=80,10,10"}),
    ("settings for a corpus", SAMPLES + "--index 0 dataset.seed=5", {"options such as --seed": SAMPLES + "--index 0 --seed 5"}),
    ("hybrid FP8 in blocks", MOCK + "mixed_precision.fp8=hybrid mixed_precision.fp8_recipe=mxfp8", {}),
    ("FP8 on CUDA", MOCK + "mixed_precision.fp8=e4m3 device=cuda", {}),
    ("a momentum of another optimizer", MOCK + "optimizer.muon_momentum=0.5", {}),
    ("weights as codes of no FP8", MOCK + "ddp.zero_stage=1 ddp.fp8_param_gather=true", {}),
    ("weights as codes of FP4", MOCK + "ddp.zero_stage=1 ddp.fp8_param_gather=true mixed_precision.fp4=e2m1", {}),
    ("weights as codes of blocks along rows", MOCK + "ddp.zero_stage=1 ddp.fp8_param_gather=true mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe=mxfp8", {}),
    ("weights as codes that nobody gathers", MOCK + "ddp.fp8_param_gather=true mixed_precision.fp8=e4m3", {}),
    ("weights as codes beside adapters", MOCK + "ddp.zero_stage=1 ddp.fp8_param_gather=true mixed_precision.fp8=e4m3 peft.type=lora", {}),
    ("a history of no FP8", MOCK + "mixed_precision.fp8_amax_history_len=4", {}),
    ("a margin of scales at hand", MOCK + "mixed_precision.fp8=e4m3 mixed_precision.fp8_margin=1", {}),
    ("a recipe of FP8 without FP8", MOCK + "mixed_precision.fp8_recipe=mxfp8", {}),
    ("first layers out of no FP8", MOCK + "mixed_precision.first_last_layers_bf16=true", {}),
    ("no first and last layers", MOCK + "mixed_precision.fp8=e4m3 mixed_precision.first_last_layers_bf16=true "
                                 "mixed_precision.num_layers_at_start_in_bf16=0 mixed_precision.num_layers_at_end_in_bf16=0", {}),
    ("a recipe of another type", MOCK + "mixed_precision.recipe=fp16_mixed dtype=bf16", {}),
    ("a recipe that no type fits", MOCK + "mixed_precision.recipe=bf16_with_nvfp4_mixed dtype=fp32", {}),
    ("a recipe without its FP8", MOCK + "mixed_precision.recipe=bf16_with_mxfp8_mixed mixed_precision.fp8=none", {}),
    ("a dense MLP of layers with experts", MOCK + "model.num_moe_experts=2 train.recompute=selective train.recompute_modules=[mlp]", {}),
    ("all layers out of FP4", MOCK + "mixed_precision.recipe=bf16_with_nvfp4_mixed", {}),
    ("activations of more layers than there are", MOCK + "offload.activations=true offload.dir=away offload.num_layers=9", {}),
    ("more layers to recompute than there are", MOCK + "train.recompute=full train.recompute_method=block train.recompute_num_layers=9", {}),
    ("a loss scale below its minimum", MOCK + "dtype=fp16 mixed_precision.initial_loss_scale=8 mixed_precision.min_loss_scale=16", {}),
    ("a dynamic loss scale of fp32", MOCK + "mixed_precision.hysteresis=3", {}),
    ("a minimum of a constant loss scale", MOCK + "dtype=fp16 mixed_precision.loss_scale=64 mixed_precision.min_loss_scale=2", {}),
    ("overflow at the smallest loss scale", MOCK.replace("train_iters=2", "train_iters=3") + "dtype=fp16 mixed_precision.min_loss_scale=4294967296", {}),
    ("graphs on a CPU", MOCK + "train.cuda_graphs=true device=cpu", {}),
    ("first and last layers in FP4", MOCK.replace("num_layers=1", "num_layers=3") + "mixed_precision.fp4=e2m1", {}),
    ("FP4 beside FP8", MOCK + "mixed_precision.fp4=e2m1 mixed_precision.fp8=e4m3", {}),
    ("a latent of no experts", MOCK + "model.moe_latent_size=16", {}),
    ("tokens gathered on one rank", MOCK + "model.num_moe_experts=4 parallel.moe_token_dispatcher_type=allgather", {}),
    ("shared experts beside no exchange", MOCK + "model.num_moe_experts=4 model.moe_shared_expert_intermediate_size=16 comm_overlap.moe_shared_expert=true", {}),
    ("turns without an exchange", MOCK + "model.num_moe_experts=4 comm_overlap.moe_expert_parallel=true", {}),
    ("turns without pairs of passes", MOCK + "model.num_layers=2 model.num_moe_experts=4 parallel.expert_model_parallel_size=2 train.global_batch_size=4 comm_overlap.moe_expert_parallel=true --ranks 2", {}),
    ("turns of one microbatch", MOCK + "model.num_layers=2 model.num_moe_experts=4 parallel.expert_model_parallel_size=2 train.micro_batch_size=2 train.global_batch_size=4 comm_overlap.moe_expert_parallel=true parallel.pipeline_schedule=dualpipe_v --ranks 2", {}),
    ("weights of two balance losses", MOCK + "model.num_moe_experts=4 model.moe_router_load_balancing_type=[seq_aux_loss,global_aux_loss] model.moe_aux_loss_coeff=0.1", {}),
    ("a balance loss twice", MOCK + "model.num_moe_experts=4 model.moe_router_load_balancing_type=[seq_aux_loss,seq_aux_loss] model.moe_aux_loss_coeff=0.1", {}),
    ("Sinkhorn beside a loss", MOCK + "model.num_moe_experts=4 model.moe_router_load_balancing_type=[sinkhorn,seq_aux_loss]", {}),
    ("dead experts of a dense model", MOCK + "logger.dead_expert_steps=7", {}),
    ("no number of experts", MOCK + "model.num_moe_experts=0", {}),
    ("a key that is always a number", MOCK + "model.kv_lora_rank=null", {}),
    ("rotary positions of no feature", MOCK + "model.multi_latent_attention=true model.kv_lora_rank=16 model.qk_head_dim=8 model.v_head_dim=8 "
     "model.qk_pos_emb_head_dim=0", {}),
    ("padding of context ranks", f"pentatron train {ENCODER} model.binary_head=false dataset.bert_binary_head=none checkpoint.save=new "
                                 "train.remove_padding=true parallel.context_parallel_size=2 parallel.tensor_model_parallel_size=2 "
                                 "parallel.sequence_parallel=true train.micro_batch_size=2 train.global_batch_size=2 train.seq_length=12 --ranks 4", {}),
    ("sequence parallel on context ranks", MOCK + "parallel.context_parallel_size=2 parallel.tensor_model_parallel_size=2 "
                                           "parallel.sequence_parallel=true train.seq_length=14 --ranks 4", {}),
    ("blocks of matrices on one rank", MOCK + "optimizer.optimizer=muon optimizer.muon_tp_mode=blockwise", {}),
    ("qk-clip of normalized heads", MOCK + "optimizer.qk_clip=true model.qk_layernorm=true", {}),
    ("qk-clip of a frozen model", MOCK + "optimizer.qk_clip=true peft.type=lora", {}),
    ("qk-clip of frozen layers", MOCK + "optimizer.qk_clip=true 'train.freeze=[\"layers.*\"]'", {}),
    ("a threshold of nothing", MOCK + "optimizer.qk_clip_threshold=50", {}),
    ("means of Adafactor in fp8", MOCK + "optimizer.optimizer=adafactor optimizer.exp_avg_dtype=fp8", {}),
    ("blocks of adaptive Muon", MOCK + "optimizer.optimizer=adaptive_muon optimizer.muon_tp_mode=blockwise "
                                "parallel.tensor_model_parallel_size=2 --ranks 2", {}),
    ("evaluation without a mean of weights", MOCK + "train.eval_weights=ema train.eval_interval=1", {}),
    ("export of no mean of weights", MOCK + "checkpoint.export_hf=true checkpoint.export_weights=ema", {}),
    ("weights of no export", MOCK + "optimizer.ema_decay=0.9 checkpoint.export_weights=ema", {}),
    ("mean of weights of an adapter", MOCK + "peft.type=lora optimizer.ema_decay=0.9 checkpoint.export_hf=true checkpoint.export_weights=ema", {}),
    ("mean of weights that is not kept", "pentatron convert --ema saved converted --format hf", {
        "the model without --ema": "pentatron convert saved converted --format hf"}),
    ("mean of weights of a foreign model", f"pentatron convert --ema {LLAMA} converted --format pentatron", {
        "the model without --ema": f"pentatron convert {LLAMA} converted --format pentatron"}),
    ("remainders of fp32", MOCK + "optimizer.store_param_remainders=true", {}),
    ("a group of parameters without factors", MOCK + "'optimizer.param_groups=[\"layers.*\"]'", {}),
    ("a group of unknown parameters", MOCK + "'optimizer.param_groups=[\"layer.* lr_mult=2\"]'", {}),
    ("sequence parallel on one rank", MOCK + "parallel.sequence_parallel=true", {}),
    ("no folder", MOCK + "logger.dir=/proc/x", {"another logger.dir": MOCK + "logger.dir=other"}),
    ("no folder of a dry run", MOCK + "logger.dir=/proc/x --dry-run", {"another logger.dir": MOCK + "logger.dir=other --dry-run"}),
    ("an empty pipe", ": | pentatron generate texts --max-new-tokens 2", {}),
    ("threads", MOCK + "train.num_threads=4096", {}),
    ("memory", MOCK + "--dry-run train.micro_batch_size=1000000 train.global_batch_size=1000000", {}),
    ("diverged", MOCK + "optimizer.lr=1e30 train.train_iters=20", {
        "a lower optimizer.lr": MOCK + "optimizer.lr=1e-3 train.train_iters=20",
        "train.on_nan=skip": MOCK + "optimizer.lr=1e30 train.train_iters=8 train.on_nan=skip"}),
    ("a constant loss scale that overflows", MOCK + "dtype=fp16 mixed_precision.loss_scale=1e12", {}),
    # cli
    ("precision of a preset", MOCK + "model.preset=gpt2_124 --dry-run", {}),
    ("unknown value", MOCK + "dtype=float16", {}),
    ("unknown value like no other", MOCK + "optimizer.optimizer=foo", {}),
    ("recipe as Lightning spells it", MOCK + "mixed_precision.recipe=bf16-mixed", {}),
    ("limit of no gate", MOCK + "model.activation_func=gelu model.activation_func_clamp_value=7", {}),
    ("unknown key", MOCK.replace("train.seq_length", "seq_length"), {}),
    ("key of Megatron with its value", MOCK + "recompute_granularity=full", {}),
    ("key of Megatron without another", MOCK + "optimizer.main_grads_dtype=fp32", {}),
    ("learning rate of the embedding in Megatron", MOCK + "optimizer.decoupled_lr=1e-3", {
        "optimizer.param_groups=": MOCK + "'optimizer.param_groups=[\"embedding.word.* lr_mult=3\"]'"}),
    ("option of Megatron without a key", MOCK + "--main-grads-dtype fp32", {}),
    ("option of Megatron", MOCK + "--moe-router-topk 3 model.num_moe_experts=4", {
        "model.moe_router_topk=3": MOCK + "model.num_moe_experts=4 model.moe_router_topk=3"}),
    ("switch of Megatron", MOCK + "--swiglu", {"model.activation_func=swiglu": MOCK + "model.activation_func=swiglu"}),
    ("key of Megatron", MOCK + "model.add_bias_linear=true", {
        "model.add_qkv_bias=true and": MOCK + "model.add_qkv_bias=true model.add_attention_proj_bias=true model.add_mlp_bias=true"}),
    ("two models to train", f"pentatron train --hf {LLAMA} {TINY} dataset.type=mock checkpoint.load=hf:{LLAMA}/../qwen3 checkpoint.save=new", {
        "checkpoint.load=hf:": f"pentatron train --hf {LLAMA} train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=2 train.train_iters=1 "
                               f"dataset.type=mock checkpoint.load=hf:{LLAMA} checkpoint.save=new kernels=order",
        "remove --hf": f"pentatron train train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=2 train.train_iters=1 "
                       f"dataset.type=mock checkpoint.load=hf:{LLAMA}/../qwen3 checkpoint.save=new kernels=order"}),
    ("unknown command", "pentatron confi help", {"pentatron config": "pentatron config help"}),
    ("unknown option", "pentatron corpus merge corpus_text_document corpus_text_document --outpt both", {
        "--output": "pentatron corpus merge corpus_text_document corpus_text_document --output both"}),
    ("missing argument", "pentatron corpus merge", {}),
    ("unknown choice", "pentatron preprocess --input texts.jsonl --tokenizer bytes --output new --on-bad-input skp", {}),
    ("value out of range", "pentatron preprocess --input texts.jsonl --tokenizer bytes --output new --workers 0", {}),
    ("option twice", "pentatron plot log --output a.svg --output b.svg", {"--output b.svg": "pentatron plot log --output b.svg"}),
    ("option of another", GENERATE + "--logprobs", {}),
    ("options that exclude each other", GENERATE + "--prompt x", {"remove --tokens": "pentatron generate texts --max-new-tokens 2 --prompt x"}),
    ("too many copies", GENERATE + "--ranks 2", {}),
    ("tensor ranks", "pentatron generate saved --prompt x device=cuda", {}),
    ("chat of a model without a template", "pentatron chat silent", {
        "pentatron generate": "pentatron generate silent --prompt x --max-new-tokens 2",
        "a tokenizer_config.json with chat_template": "pentatron convert silent hf --format hf; cp speaking/tokenizer_config.json hf/; pentatron chat hf"}),
    # serve
    ("a server without a tokenizer", f"pentatron serve {LLAMA}", {
        "tokenizer.path": LETTERS + SERVE.replace("serve talk", f"serve {LLAMA}") + "tokenizer.path=letters.json"}),
    ("a server for all without a token", SERVE + "--listen 0.0.0.0", {
        "--token-file FILE": TOKEN + SERVE + "--listen 0.0.0.0 --token-file token", "remove --listen": SERVE}),
    ("an address that is none", TOKEN + SERVE + "--token-file token --listen somewhere", {"for all IPv4 addresses": TOKEN + SERVE + "--token-file token --listen 0.0.0.0"}),
    ("a port in use", "python3 -c 'import socket, subprocess, sys; s = socket.create_server((\"127.0.0.1\", 0)); "
     f"sys.exit(subprocess.run(sys.argv[1] + str(s.getsockname()[1]), shell=True).returncode)' '{SERVE.replace('--port 0 ', '')}--port '", {"--port 0 for any free port": SERVE}),
    ("a token that is too short", "echo short > token; chmod 600 token; " + SERVE + "--token-file token", {"made by openssl": TOKEN + SERVE + "--token-file token"}),
    ("no file with a token", SERVE + "--token-file none", {"the token in one line": TOKEN + SERVE + "--token-file token"}),
    ("a token that others can read", TOKEN.replace("600", "644") + SERVE + "--token-file token", {"chmod 600": TOKEN + SERVE + "--token-file token"}),
    ("a size that is none", SERVE + "--max-body many", {}),
    ("passes of few tokens", SERVE + "--pass-tokens 8", {}),
    ("a cache for more than the memory", SERVE + "--cache-tokens 1099511627776", {}),
    ("a cache for less than a text", SERVE + "--cache-tokens 8", {}),
    ("an adapter without a name", SERVE + "--adapter adapted", {"--adapter mine=": ADAPTED_SERVER + "--adapter mine=adapted"}),
    ("an adapter with whole modules for a server", ADAPTED_SERVER + "--adapter a=retrained", {
        "merged as the model": SPEAKER + "pentatron convert speaker merged --adapter retrained --format hf && " + SERVE.replace("serve talk", "serve merged")}),
    ("two adapters of one name", ADAPTED_SERVER + "--adapter a=adapted --adapter a=adapted", {"-2=": ADAPTED_SERVER + "--adapter a=adapted --adapter a-2=adapted"}),
    ("an adapter for a server that is none", SERVE + "--adapter a=nowhere", {"the folder of an adapter": ADAPTED_SERVER + "--adapter a=adapted"}),
    ("chat over processes", "pentatron chat talk --ranks 2 --backend sockets parallel.tensor_model_parallel_size=2", {}),
    ("format", "pentatron convert saved out --format nonsense", {
        "pentatron, hf": "pentatron convert saved out --format hf", "gguf": "pentatron convert saved out --format gguf"}),
    ("target exists", "pentatron convert saved bare --format hf", {
        "another target": "pentatron convert saved out --format hf", "--overwrite": "pentatron convert saved bare --format hf --overwrite"}),
    ("shard size of one file", "pentatron convert saved out.gguf --format gguf --max-shard-size 5MB", {}),
    ("prune of one checkpoint", "pentatron checkpoint prune saved/step_00000002 --keep 2", {}),
    ("an export as a checkpoint", "mkdir -p saved/hf/step_00000002; echo {} > saved/hf/step_00000002/config.json; pentatron checkpoint inspect saved/hf", {
        "saved": "pentatron checkpoint inspect saved"}),
    ("exports as a model", "mkdir -p ex; cp -rL $DATA/hf_tiny/llama ex/step_00000001; pentatron generate ex --tokens 1,2 --max-new-tokens 2", {
        "ex/step_00000001": "mkdir -p ex; cp -rL $DATA/hf_tiny/llama ex/step_00000001; pentatron generate ex/step_00000001 --tokens 1,2 --max-new-tokens 2"}),
    ("merge over another file", "echo mine > z.bin; pentatron corpus merge corpus_text_document --output z --overwrite", {
        "another --output": "pentatron corpus merge corpus_text_document --output other",
        "rm z.bin if you do not need it": "echo mine > z.bin; rm z.bin; pentatron corpus merge corpus_text_document --output z --overwrite"}),
    ("split into fewer parts", "pentatron corpus split corpus_text_document --shares 1,1,1 --output p > /dev/null; "
                               "pentatron corpus split corpus_text_document --shares 1,1 --output p --overwrite", {
        "another --output": "pentatron corpus split corpus_text_document --shares 1,1 --output q"}),
    ("scores in no folder", f"pentatron evaluate texts {TASKS} --out none/s.json", {}),
    ("two tasks of one name", "cp -rL $DATA/evaluation ev; chmod -R u+w ev; cp ev/yes_no.yaml ev/again.yaml; "
                              "pentatron evaluate texts --tasks ev/yes_no.yaml,ev/again.yaml eval.limit=1 eval.max_length=8", {
        "task: yes_no_2 in one of them": "cp -rL $DATA/evaluation ev; chmod -R u+w ev; sed 's/^task: .*/task: yes_no_2/' ev/yes_no.yaml > ev/again.yaml; "
                                         "pentatron evaluate texts --tasks ev/yes_no.yaml,ev/again.yaml eval.limit=1 eval.max_length=8"}),
    ("every Nth of all", "pentatron checkpoint prune saved --keep 0 --keep-every 2", {}),
    ("bpe without output", "pentatron tokenize --train-bpe 300 < words.txt", {
        "--output tokenizer.json": "pentatron tokenize --train-bpe 300 --output tokenizer.json < words.txt"}),
    ("bpe over a file", "pentatron tokenize --train-bpe 300 --output bpe.json < words.txt; pentatron tokenize --train-bpe 300 --output bpe.json < words.txt", {
        "another --output": "pentatron tokenize --train-bpe 300 --output new.json < words.txt"}),
    ("nothing to compare", "pentatron config diff", {}),
    ("one that is not there", "pentatron config diff saved none", {
        "a YAML file, a run folder": "pentatron config diff saved log", "a checkpoint": "pentatron config diff saved texts"}),
    ("help of nothing", "pentatron config help zzzqqq", {}),
    ("help of an empty word", "pentatron config help ''", {}),
    ("token that the model lacks", GENERATE.replace("1,2", "1,900"), {}),
    ("a limit of a choice that is none", GENERATE + "--temperature 0 --top-k 5", {}),
    ("documents as a corpus", INDEXED.replace("dataset.path=corpus_text_document", "dataset.path=texts.jsonl"), {
        "pentatron preprocess --input texts.jsonl --output PREFIX": "pentatron preprocess --input texts.jsonl --tokenizer bytes --output made"}),
    ("a device as text", TEXT.replace("dataset.path=texts.jsonl", "dataset.path=/dev/null"), {"a file, or a folder that contains files": TEXT}),
    ("temperature", GENERATE + "--temperature -1", {}),
    ("top-p", GENERATE + "--top-p 3", {}),
    ("top-k", GENERATE + "--top-k -1", {}),
    ("min-p", GENERATE + "--min-p 3", {}),
    ("repetition penalty", GENERATE + "--repetition-penalty 0", {}),
    ("new tokens", GENERATE.replace("--max-new-tokens 2 ", "--max-new-tokens -1 "), {}),
    ("no model", "pentatron generate nothing --tokens 1", {
        "a Hugging Face folder, a run's checkpoint folder (checkpoint.save), or a .gguf file": f"pentatron generate {LLAMA} --tokens 1"}),
    ("experts of experts", f"pentatron convert {LLAMA.replace('llama', 'mixtral')} out --format hf --experts 8", {
        "a dense model": f"pentatron convert {LLAMA} out --format hf --experts 8"}),
    ("export of a model that no family has", MOCK + "model.num_moe_experts=4 model.moe_router_enable_expert_bias=true checkpoint.export_hf=true", {}),
    ("quantized weights", f"cp -rL {LLAMA} eighth; chmod -R u+w eighth; sed -i '0,/{{/s//{{\"quantization_config\": {{\"quant_method\": \"fp8\"}},/' eighth/config.json; "
     f"pentatron evaluate eighth --batches {LLAMA}/expected.safetensors", {"weights are not quantized": f"pentatron evaluate {LLAMA} --batches {LLAMA}/expected.safetensors",
      "its GGUF file": f"pentatron convert {LLAMA} own.gguf; pentatron evaluate own.gguf --batches {LLAMA}/expected.safetensors"}),
    ("conversion of a model that no family has", "pentatron convert balanced out --format hf", {}),
    ("gradients of a model that no family has", "pentatron evaluate balanced --grads-out g.safetensors --batches masked.safetensors", {
        "remove --grads-out": "pentatron evaluate balanced --batches masked.safetensors"}),
    ("experts of a token", f"pentatron convert {LLAMA} out --format hf --experts 2 --experts-topk 3", {}),
    ("too many experts", f"pentatron convert {LLAMA} out --format hf --experts 70000", {}),
    ("no experts", f"pentatron convert {LLAMA} out --format hf --experts 0", {}),
    ("a limit that GGUF lacks", "pentatron convert limited out.gguf --format gguf", {"--format hf": "pentatron convert limited out --format hf"}),
    ("a limit that quantized GGUF lacks", "pentatron convert limited out.gguf --quantize q8_0", {
        "--format hf with another type": "pentatron convert limited out --format hf --dtype bf16"}),
    ("one expert of a token", f"pentatron convert {LLAMA} out --format hf --experts 2 --experts-topk 1", {}),
    ("experts of an encoder", f"pentatron convert {LLAMA.replace('llama', 'bert')} out --format hf --experts 2", {
        "a model of type gpt": f"pentatron convert {LLAMA} out --format hf --experts 2"}),
    ("layers of multi-token prediction in Llama's form", "pentatron convert further out --format hf", {
        "--without-mtp": "pentatron convert further out --format hf --without-mtp",
        "--format pentatron": "pentatron convert further out --format pentatron"}),
    ("layers of multi-token prediction and GGUF", "pentatron convert further out.gguf --format gguf", {
        "--without-mtp": "pentatron convert further out.gguf --format gguf --without-mtp"}),
    ("layers of multi-token prediction that are not there", f"pentatron convert {LLAMA} out --format hf --without-mtp", {
        "remove --without-mtp": f"pentatron convert {LLAMA} out --format hf"}),
    ("multi-token prediction without layers", MOCK + "model.mtp_loss_scaling_factor=0.3", {}),
    ("a pipeline layout with multi-token prediction", MOCK + "parallel.pipeline_model_parallel_layout=EtmL", {}),
    ("experts and quantization", f"pentatron convert {LLAMA} out --quantize q8_0 --experts 8", {
        "--format pentatron": f"pentatron convert {LLAMA} out --format pentatron --experts 8"}),
    ("over a run", f"pentatron convert {LLAMA} saved --format hf --overwrite", {"another target": f"pentatron convert {LLAMA} out --format hf --overwrite"}),
    ("over what is no model", "pentatron convert saved texts.jsonl --format hf --overwrite", {
        "another target": "pentatron convert saved out --format hf --overwrite"}),
    ("over its source", "pentatron convert saved saved/step_00000002 --format hf --overwrite", {
        "another target": "pentatron convert saved out --format hf --overwrite"}),
    ("precision of a format", "pentatron convert saved out --format hf --dtype q2", {
        "fp32, bf16 or fp16": "pentatron convert saved out --format hf --dtype bf16"}),
    ("precision of GGUF", "pentatron convert saved out.gguf --format gguf --dtype q2", {
        "f32, f16, bf16, q8_0 or q4_k": "pentatron convert saved out.gguf --format gguf --dtype q8_0"}),
    ("task", "pentatron generate odd --tokens 1", {"save its encoder alone": HIDDEN + "--hidden-out hidden.safetensors"}),
    ("what Hugging Face lacks", f"pentatron train {ENCODER} model.num_tokentypes=0 model.binary_head=false dataset.bert_binary_head=none checkpoint.save=new; "
     "pentatron convert new out --format hf", {}),
    ("no weights", "pentatron generate bare --tokens 1", {"the folder of a Hugging Face model": f"pentatron generate {LLAMA} --tokens 1"}),
    ("no config.json", MOCK + "checkpoint.load=hf:nothing_in_it", {
        "the folder of a Hugging Face model": f"pentatron generate {LLAMA} --tokens 1"}),
    ("pickled weights", "pentatron generate pickled --tokens 1", {"save the model as Safetensors": f"pentatron generate {LLAMA} --tokens 1"}),
    ("pickled file", "pentatron generate model.pt --tokens 1", {"save the model as Safetensors": f"pentatron generate {LLAMA} --tokens 1"}),
    ("one file of a model", f"pentatron generate {LLAMA}/model.safetensors --tokens 1", {
        "the folder that contains it": f"pentatron generate {LLAMA} --tokens 1"}),
    ("not a model", "pentatron generate texts.jsonl --tokens 1", {
        "a Hugging Face folder, a run's checkpoint folder (checkpoint.save), or a .gguf file": f"pentatron generate {LLAMA} --tokens 1"}),
    ("folder without a model", "pentatron generate nothing_in_it --tokens 1", {
        "a Hugging Face folder, a run's checkpoint folder (checkpoint.save), or a .gguf file": f"pentatron generate {LLAMA} --tokens 1"}),
    ("damaged", MOCK + "checkpoint.load=parity", {}),
    ("nothing to verify", "pentatron checkpoint verify nothing_in_it", {
        "the folder that was given as checkpoint.save": "pentatron checkpoint verify saved", "a step_ folder in it": "pentatron checkpoint verify saved/step_00000002"}),
    ("text without a tokenizer", "pentatron inspect samples --prefix corpus_text_document --sequence-length 8 --index 0 --text", {
        "--tokenizer PATH": "pentatron inspect samples --prefix corpus_text_document --sequence-length 8 --index 0 --text --tokenizer bytes"}),
    ("samples of the stable order", "pentatron inspect samples --prefix corpus_text_document --sequence-length 8 --num-samples 2 --index 0", {}),
    ("a setting that conversations lack", CONVERSATIONS + "model.num_layers=2", {
        "key=value with one of": CONVERSATIONS + "dataset.text_key=text"}),
    ("samples as words", SAMPLES + "--index 0 1", {"several samples": SAMPLES + "--index 0,1"}),
    ("a setting of conversations", SAMPLES + "--index 0 dataset.chat_date=2025-01-31", {"options such as": SAMPLES + "--index 0 --seed 2"}),
    ("sample before the first", SAMPLES + "--index 0,-1", {}),
    ("sample of no number", SAMPLES + "--index 100000000000000000000", {}),
    ("sample after the last", SAMPLES + "--order megatron --index 0,9000", {}),
    ("pattern of a tokenizer with its own", "head -1 texts.jsonl | pentatron tokenize --tokenizer $DATA/tokenizers/gpt2.json --pattern gpt2", {}),
    ("BPE of nothing", "pentatron tokenize --train-bpe 290 --input empty.txt --output o.json", {
        "--input with a file or folder that contains text": "pentatron tokenize --train-bpe 290 --input words.txt --output o.json"}),
    ("BPE of few tokens", "pentatron tokenize --train-bpe 10 --input words.txt --output o.json", {}),
    ("BPE of more tokens than words", "pentatron tokenize --train-bpe 100000 --input words.txt --output o.json", {
        "more text": "pentatron tokenize --train-bpe 290 --input words.txt --output o.json"}),
    ("BPE with a tokenizer", "pentatron tokenize --train-bpe 290 --input words.txt --output o.json --tokenizer other.json", {}),
    ("output of ids", "pentatron tokenize --tokenizer other.json --output o.jsonl < texts.jsonl", {
        "remove --output": "pentatron tokenize --tokenizer other.json < texts.jsonl"}),
    ("special tokens of texts that are read", "pentatron tokenize --tokenizer other.json --decode --add-special < empty.txt", {
        "remove --add-special": "pentatron tokenize --tokenizer other.json --decode < empty.txt"}),
    ("weight of 0", "pentatron inspect blend --weights 1,0 --size 3", {}),
    ("BPE of another key", "pentatron tokenize --train-bpe 290 --input texts.jsonl --json-keys body --output o.json", {}),
    ("negative share", "pentatron corpus split corpus_text_document --shares -1,2 --output part", {}),
    ("corpus below a file", "pentatron corpus merge corpus_text_document corpus_text_document --output notes.txt/both", {
        "--output in a folder that you can write to": "pentatron corpus merge corpus_text_document corpus_text_document --output both"}),
    ("plot as a bitmap", "pentatron plot log --output new.png", {"--output new.svg": "pentatron plot log --output new.svg"}),
    ("a key twice", "pentatron preprocess --input texts.jsonl --json-keys text,text --tokenizer bytes --output twice", {
        "--json-keys text": "pentatron preprocess --input texts.jsonl --json-keys text --tokenizer bytes --output twice"}),
    ("tokens below a file", "pentatron preprocess --input texts.jsonl --tokenizer bytes --output notes.txt/new", {
        "another --output": "pentatron preprocess --input texts.jsonl --tokenizer bytes --output new"}),
    ("smoothing by no number", "pentatron plot log --smooth nan", {}),
    ("lock that is a folder", "mkdir -p locked/run.lock; " + MOCK + "logger.dir=locked", {
        "another folder": MOCK + "logger.dir=other", "remove locked/run.lock": MOCK + "logger.dir=locked"}),
    ("paths of no parts", INDEXED.replace("dataset.path=corpus_text_document", "dataset.per_split_data_args_path=bad.json"), {
        "a JSON or YAML file": """echo '{"train": ["corpus_text_document"], "valid": ["corpus_text_document"]}' > good.json; """
                               + INDEXED.replace("dataset.path=corpus_text_document", "dataset.per_split_data_args_path=good.json")}),
    ("tokenize without a tokenizer", "echo a | pentatron tokenize", {
        "--tokenizer tokenizer.json": "head -1 texts.jsonl | pentatron tokenize --tokenizer $DATA/tokenizers/gpt2.json"}),
    ("prompt without a tokenizer", f"pentatron generate {LLAMA} --prompt x", {
        "tokenizer.path": LETTERS + f"pentatron generate {LLAMA} --prompt x --max-new-tokens 2 tokenizer.path=letters.json",
        "--tokens 1,2,3": f"pentatron generate {LLAMA} --tokens 1,2,3"}),
    ("a tokenizer for token ids", LETTERS + f"pentatron generate {LLAMA} --tokens 1,2,3 --max-new-tokens 2 tokenizer.path=letters.json", {}),
    ("no setting", GENERATE + "optimizer.lr=1", {}),
    ("ranks of two launchers", "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 " + MOCK + "--ranks 2", {}),
    ("two types", "pentatron convert saved o.gguf --quantize q8_0 --dtype bf16", {"only --quantize q8_0": "pentatron convert saved o.gguf --quantize q8_0"}),
    ("quantized folder", "pentatron convert saved out --quantize q8_0 --format hf", {"--format gguf": "pentatron convert saved out.gguf --quantize q8_0 --format gguf"}),
    ("text of nothing", "pentatron convert saved o.gguf --text-file words.txt --format gguf", {}),
    ("no format", "pentatron convert saved out", {}),
    ("two models", "pentatron evaluate texts --hf saved --text ab", {"pentatron evaluate": "pentatron evaluate texts --text ab"}),
    ("nothing to evaluate", "pentatron evaluate texts", {}),
    ("two things to evaluate", "pentatron evaluate texts --text ab --file words.txt", {"only --": "pentatron evaluate texts --text ab"}),
    ("logits of a text", "pentatron evaluate texts --text ab --logits-out l.safetensors", {"--batches batch.safetensors": BATCH + "--logits-out l.safetensors"}),
    ("hidden states of files", "pentatron evaluate texts --file words.txt --hidden-out h.safetensors", {
        "--text": "pentatron evaluate texts --text ab --hidden-out h.safetensors"}),
    ("text of an encoder", "pentatron evaluate encoder --text ab", {
        "--hidden-out": "pentatron evaluate encoder --text ab --hidden-out hidden.safetensors",
        "--batches FILE": "pentatron evaluate encoder --batches masked.safetensors"}),
    ("a text as a batch", "pentatron evaluate texts --batches words.txt", {
        "--batches FILE.safetensors": BATCH, "--file words.txt": "pentatron evaluate texts --file words.txt"}),
    ("gradients without labels", "pentatron evaluate --hf $DATA/hf_tiny/bert_masked_lm --grads-out g.safetensors --batches $DATA/hf_tiny/bert_model/expected.safetensors", {
        "remove --grads-out": "pentatron evaluate --hf $DATA/hf_tiny/bert_masked_lm --hidden-out h.safetensors --batches $DATA/hf_tiny/bert_model/expected.safetensors",
        "--batches FILE": "pentatron evaluate --hf $DATA/hf_tiny/bert_masked_lm --grads-out g.safetensors --batches $DATA/hf_tiny/bert_masked_lm/expected.safetensors"}),
    ("logits without a head", HIDDEN + "--logits-out l.safetensors", {"--hidden-out": HIDDEN + "--hidden-out l.safetensors"}),
    ("gradients without a loss", HIDDEN + "--grads-out g.safetensors --hidden-out h.safetensors", {}),
    ("a context longer than the model's", "pentatron generate texts --prompt ab --max-new-tokens 2 train.seq_length=100000", {}),
    ("tuning of nothing", MOCK + "checkpoint.load=nothing checkpoint.finetune=true", {"remove checkpoint.load and checkpoint.finetune": MOCK}),
    ("stride of labels", "pentatron evaluate labels --file labels.jsonl --stride 4", {}),
    ("labels of a text", "pentatron evaluate texts --file texts.jsonl --label-key mood", {}),
    ("pairs of a text", "pentatron evaluate texts --file texts.jsonl --text-pair-key other", {}),
    ("a label that the model lacks", "pentatron train checkpoint.load=labels checkpoint.finetune=true dataset.train_data_path=more.jsonl "
     "train.train_iters=1 train.seq_length=16 train.num_threads=1 logger.peak_tflops=1 kernels=order", {}),
    ("classes in another order", "pentatron train checkpoint.load=labels checkpoint.finetune=true dataset.train_data_path=labels.jsonl model.label_names=[sad,glad] "
     "train.train_iters=1 train.seq_length=16 train.num_threads=1 logger.peak_tflops=1 kernels=order", {}),
    ("windows of a batch", BATCH + "--stride 4", {"--file text.txt": "pentatron evaluate texts --file words.txt --stride 4"}),
    ("text without a tokenizer", f"pentatron evaluate {LLAMA} --text ab", {"tokenizer.path": LETTERS + f"pentatron evaluate {LLAMA} --text ab tokenizer.path=letters.json"}),
    ("replaced outputs without an output", "pentatron evaluate texts --text ab --overwrite", {}),
    ("scores in a folder that is not there", f"pentatron evaluate texts {TASKS} --out nowhere/scores.json", {}),
    ("tasks without a tokenizer", f"pentatron evaluate {LLAMA} {TASKS}", {"tokenizer.path": f"pentatron evaluate texts {TASKS}"}),
    ("tasks of an encoder", f"pentatron evaluate labels {TASKS}", {"--file FILE.jsonl": "pentatron evaluate labels --file labels.jsonl"}),
    ("tasks with too long a window", f"pentatron evaluate texts {TASKS}".replace("length=8", "length=100000"), {}),
    ("tasks of training", f"pentatron evaluate texts {TASKS} eval.tasks=[a]", {}),
    ("tasks with the interval of training", f"pentatron evaluate texts {TASKS} eval.interval=2", {}),
    ("no model to evaluate", "pentatron evaluate --text ab", {"pentatron evaluate DIR": "pentatron evaluate texts --text ab"}),
    ("batches without labels", "pentatron evaluate --hf $DATA/hf_tiny/bert_masked_lm --batches $DATA/hf_tiny/bert_model/expected.safetensors", {}),
    ("text of an encoder", "pentatron generate encoder --prompt ab", {}),
    ("two outputs in one file", EVALUATE + "--logits-out l.safetensors --grads-out l.safetensors", {}),
    ("plot of nothing", "pentatron plot nowhere", {"the logger.dir of a run": "pentatron plot log", "its metrics.jsonl": "pentatron plot log/metrics.jsonl"}),
    ("plot of a folder", "pentatron plot pictures", {"the logger.dir of a run": "pentatron plot log"}),
    ("plot of no figure", "pentatron plot log --y size", {"--y with one of": "pentatron plot log --y step_time_s"}),
    ("plot into nothing", "pentatron plot log --output ''", {}),
    ("plot into a folder", "pentatron plot log --output pictures", {}),
    ("plot over another file", "pentatron plot log --output notes.txt --overwrite", {}),
    ("plot over a file", "pentatron plot log --output p.svg; pentatron plot log --output p.svg", {"another --output": "pentatron plot log --output other.svg"}),
    ("file to tokenize", "pentatron tokenize --tokenizer $DATA/tokenizers/gpt2.json --input words.txt", {
        "pentatron tokenize --tokenizer PATH < FILE": "pentatron tokenize --tokenizer $DATA/tokenizers/gpt2.json < texts.jsonl"}),
    ("prompts without a prompt", "pentatron generate texts --max-new-tokens 2 --prompt-file empty.txt", {
        "one prompt on each line": "pentatron generate texts --max-new-tokens 2 --prompt-file notes.txt",
        '{"prompt"': "pentatron generate texts --max-new-tokens 2 --prompt-file notes.txt"}),
    ("prompt that is a number", "pentatron generate texts --max-new-tokens 2 --prompt-file bad.jsonl", {
        '{"prompt": "It is"}': "cp texts.jsonl good.jsonl; sed -i 's/text/prompt/' good.jsonl; pentatron generate texts --max-new-tokens 2 --prompt-file good.jsonl"}),
    ("prompt on several lines", "printf '{\\n\"prompt\": \"x\"\\n}\\n' > lines.json; pentatron generate texts --max-new-tokens 2 --prompt-file lines.json", {
        '{"prompt": "It is"}': """echo '{"prompt": "It is"}' > lines.json; pentatron generate texts --max-new-tokens 2 --prompt-file lines.json"""}),
    ("prompt of an array that is a number", "pentatron generate texts --max-new-tokens 2 --prompt-file bad.json", {
        '["It is"': """echo '["It is"]' > good.json; pentatron generate texts --max-new-tokens 2 --prompt-file good.json"""}),
    ("pattern of bytes", "head -1 texts.jsonl | pentatron tokenize --tokenizer bytes --pattern gpt2", {}),
    ("nothing to save", MOCK + "train.train_iters=0", {}),
    # data
    *[(f"a list of corpora: {content}", f"echo '{content}' > list.json; " + INDEXED.replace("corpus_text_document", "list.json"),
       {"a list of prefixes" if told is LIST else "a JSON or YAML file": f"echo '{told}' > good.json; " + INDEXED.replace("corpus_text_document", "good.json")})
      for content, told in (('[true]', LIST), ('{"train": 5}', LIST), ('[]', LIST), ('{"tran": ["corpus_text_document"]}', PARTS),
                            ('{"valid": ["corpus_text_document"]}', PARTS))],
    ("a list of corpora that is too large", "truncate -s 17M large.yaml; " + INDEXED.replace("corpus_text_document", "large.yaml"), {
        "a JSON or YAML file": f"echo '{PARTS}' > good.json; " + INDEXED.replace("corpus_text_document", "good.json")}),
    ("a corpus without its index", "rm corpus_text_document.idx; " + CORPUS, {
        "another --output": CORPUS.replace("--output corpus", "--output other"), "rm corpus_text_document.bin": "rm corpus_text_document.*; " + CORPUS}),
    ("a damaged corpus", ": > corpus_text_document.idx; pentatron corpus inspect corpus_text_document", {
        "an intact copy": "pentatron corpus inspect corpus_text_document", "make both again": CORPUS + " --overwrite"}),
    ("a smaller vocabulary than a corpus has", INDEXED.replace("vocab_size=300", "vocab_size=30"), {
        "model.vocab_size=257 for a new model": INDEXED.replace("vocab_size=300", "vocab_size=257"), "made with the tokenizer of the model": INDEXED}),
    ("a smaller vocabulary to verify", "pentatron corpus verify corpus_text_document --vocab-size 5", {
        "--vocab-size N": "pentatron corpus verify corpus_text_document --vocab-size 257"}),
    ("corpora of two tokenizers", "pentatron corpus merge $DATA/megatron/corpus_a $DATA/megatron/corpus_b --output both", {
        "only corpora made with one tokenizer": "pentatron corpus merge $DATA/megatron/corpus_a $DATA/megatron/corpus_a --output both"}),
    ("text that is not UTF-8", "printf 'a\\377' | pentatron tokenize --tokenizer bytes", {
        "text in UTF-8": "head -1 texts.jsonl | pentatron tokenize --tokenizer bytes"}),
    ("text that is not JSON", "echo a | pentatron tokenize --tokenizer bytes", {
        "JSON objects like": "head -1 texts.jsonl | pentatron tokenize --tokenizer bytes"}),
    ("prompts that are not UTF-8", "printf 'a\\377' > latin.txt; pentatron generate texts --max-new-tokens 2 --prompt-file latin.txt", {
        "a file with text in UTF-8": "head -1 words.txt > one.txt; pentatron generate texts --max-new-tokens 2 --prompt-file one.txt"}),
    ("examples that are none", "echo '{\"a\": 1}' > odd.jsonl; " + SFT + "dataset.path=odd.jsonl", {
        "objects with messages, conversations, prompt and completion, instruction and output, or text": SFT + "dataset.path=chats.jsonl"}),
    ("samples that are none", f"echo '{{\"a\": 1}}' > odd.jsonl; {CLASSIFIER} dataset.train_data_path=odd.jsonl", {
        "objects like": f"{CLASSIFIER} dataset.train_data_path=labels.jsonl"}),
    ("the tokenizer of another model", f"pentatron generate {LLAMA} --prompt a tokenizer.path=bytes", {
        "tokenizer.path=FILE_OR_FOLDER": "pentatron generate texts --prompt a --max-new-tokens 2"}),
    ("stages of too few layers by cost", MOCK + "--ranks 6 parallel.pipeline_model_parallel_size=6 parallel.pipeline_balance=cost", {}),
    ("another corpus", INDEXED.replace("corpus_text_document", "corpus"), {"the prefix corpus_text_document": INDEXED}),
    ("no corpus", INDEXED.replace("dataset.path=corpus_text_document", "dataset.path=[]"), {"dataset.path=PREFIX": INDEXED}),
    ("a corpus for a text", TEXT.replace("texts.jsonl", "corpus_text_document"), {"pentatron train dataset.type=indexed": INDEXED}),
    ("no file", TEXT.replace("texts.jsonl", "nowhere.jsonl"), {
        "a .jsonl, .json, .parquet, .tsv, .txt or .md file, or a folder that contains such files": TEXT}),
    ("prefix of nothing", INDEXED.replace("corpus_text_document", "nowhere"), {"the prefix of PREFIX.bin": INDEXED}),
    ("long window", "pentatron evaluate texts --text abc --context 100000", {}),
    ("long stride", "pentatron evaluate texts --text abc --stride 100000", {}),
    ("a setting of training", GENERATE + "train.train_iters=3", {}),
    ("context ranks of an evaluation", "pentatron evaluate texts --text ab parallel.context_parallel_size=2", {}),
    ("expert ranks of a dense model", GENERATE + "--ranks 2 parallel.expert_model_parallel_size=2", {
        "parallel.tensor_model_parallel_size=2 instead": GENERATE + "--ranks 2 parallel.tensor_model_parallel_size=2"}),
    ("expert ranks of a dense model on one rank", GENERATE + "parallel.expert_model_parallel_size=2", {}),
    ("a router that learns nothing", MOCK + "model.num_moe_experts=4 model.moe_router_topk=1 model.moe_router_score_function=sigmoid model.moe_router_norm_topk_prob=true", {}),
    ("expert ranks that are no tensor ranks", GENERATE.replace("saved", "balanced") + "--ranks 2 parallel.expert_model_parallel_size=2", {"--ranks 2 parallel.tensor_model_parallel_size=2": GENERATE.replace("saved", "balanced") + "--ranks 2 parallel.expert_model_parallel_size=2 parallel.tensor_model_parallel_size=2 parallel.expert_tensor_parallel_size=1"}),
    ("expert ranks on one rank", GENERATE.replace("saved", "balanced") + "parallel.expert_model_parallel_size=2", {"--ranks 2 parallel.tensor_model_parallel_size=2": GENERATE.replace("saved", "balanced") + "--ranks 2 parallel.expert_model_parallel_size=2 parallel.tensor_model_parallel_size=2 parallel.expert_tensor_parallel_size=1"}),
    ("expert ranks of split experts", GENERATE.replace("saved", "balanced") + "--ranks 2 parallel.expert_model_parallel_size=2 parallel.tensor_model_parallel_size=2", {"--ranks 2 parallel.tensor_model_parallel_size=2": GENERATE.replace("saved", "balanced") + "--ranks 2 parallel.expert_model_parallel_size=2 parallel.tensor_model_parallel_size=2 parallel.expert_tensor_parallel_size=1"}),
    ("an order in which experts lie elsewhere", MOCK + "model.num_layers=2 model.num_moe_experts=4 train.global_batch_size=4 --ranks 8 parallel.pipeline_model_parallel_size=2 "
     "parallel.context_parallel_size=2 parallel.expert_model_parallel_size=4 parallel.use_tp_pp_dp_mapping=true --dry-run", {}),
    ("a short name of a key", GENERATE + "--ranks 2 tp=2", {}),
    ("context ranks of generation", GENERATE + "--ranks 2 parallel.context_parallel_size=2", {
        "parallel.tensor_model_parallel_size=2 instead": GENERATE + "--ranks 2 parallel.tensor_model_parallel_size=2"}),
    ("no setting and no file", GENERATE + "device", {"dtype=fp32, device=cpu": GENERATE + "device=cpu", "train.num_threads=2": GENERATE + "train.num_threads=2"}),
    ("another key", "pentatron preprocess --input texts.jsonl --json-keys body --tokenizer bytes --output new", {}),
    ("bad line of a corpus", "pentatron preprocess --input mixed.jsonl --tokenizer bytes --output new --on-bad-input error", {}),
    ("no output", "pentatron preprocess --input texts.jsonl --tokenizer bytes --output ''", {}),
    ("output without a name", "pentatron preprocess --input texts.jsonl --tokenizer bytes --output nothing_in_it/", {}),
    ("another tokenizer", TEXT + "checkpoint.load=texts train.train_iters=3 model.vocab_size=300 tokenizer.path=other.json", {
        "the tokenizer of the checkpoint": TEXT + "checkpoint.load=texts train.train_iters=3"}),
    ("seed", INDEXED + "dataset.order=megatron dataset.seed=5000000000", {}),
    ("no text", TEXT.replace("texts.jsonl", "pictures"), {
        "files that end in": TEXT, "in .parquet": TEXT}),
    ("bad line", TEXT.replace("texts.jsonl", "mixed.jsonl"), {}),
    ("no validation data", TEXT + "train.eval_interval=1 dataset.split=100", {}),
    ("best without validation", TEXT + "train.eval_interval=1 dataset.split=100 checkpoint.keep_best=1", {}),
    ("tokenizer without a file", TEXT + "tokenizer.type=huggingface", {"tokenizer.path=FILE": TEXT + "tokenizer.type=huggingface tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000"}),
    ("file without effect", TEXT + "tokenizer.type=bytes tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000", {}),
    ("no tokenizer here", TEXT + "tokenizer.path=nothing_in_it", {
        "a folder with tokenizer.json": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000",
        "one .tiktoken file": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000",
        "the file itself": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000"}),
    ("no tokenizer's file", TEXT + "tokenizer.path=words.txt", {
        "the folder with vocab.json": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000",
        "tokenizer.json": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000"}),
    ("text as a tokenizer", TEXT + "tokenizer.path=texts.jsonl", {
        "a folder that contains one": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000",
        "tokenizer.json, a .model": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000"}),
    ("JSON as a tokenizer", TEXT + "tokenizer.path=bad.json", {
        "a folder that contains one": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000",
        "tokenizer.json, a .model": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000"}),
    ("nowhere", TEXT + "tokenizer.path=nowhere", {
        "a folder that contains one": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000",
        "tokenizer.json, a .model": TEXT + "tokenizer.path=$DATA/tokenizers/classes.json model.vocab_size=60000"}),
    ("batches without a file", TEXT.replace("type=text dataset.path=texts.jsonl", "type=batches"), {
        "dataset.path=FILE.safetensors": f"pentatron train --hf {LLAMA} dataset.type=batches dataset.path=$DATA/training_curves/llama.safetensors train.train_iters=2 "
                                         "train.global_batch_size=4 train.micro_batch_size=4 train.num_threads=1 checkpoint.save=new logger.peak_tflops=1 kernels=order"}),
    ("steps of batches", f"pentatron train --hf {LLAMA} dataset.type=batches dataset.path=$DATA/training_curves/llama.safetensors train.train_iters=2000 "
     "train.global_batch_size=4 train.micro_batch_size=4 train.num_threads=1 checkpoint.save=new logger.peak_tflops=1 kernels=order", {}),
    ("tokenizer's size", TEXT.replace("vocab_size=300", "vocab_size=100"), {}),
    ("shares", TEXT + "dataset.split=1,2,3,4", {}),
    ("shares of a corpus", INDEXED + "dataset.split=1,2,3,4", {}),
    ("shares in Megatron's order", INDEXED + "dataset.order=megatron dataset.split=1,2,3,4", {}),
    ("null tokenizer", TEXT + "tokenizer.type=null dataset.type=mock dataset.path= model.vocab_size=60000", {}),
    ("fill in the middle", TEXT + "dataset.fim_rate=0.5 dataset.fim_prefix_token=1 dataset.fim_middle_token=2 "
     "dataset.fim_suffix_token=3 dataset.fim_pad_token=400", {}),
    ("output of an evaluation", EVALUATE + "--logits-out texts.jsonl --overwrite", {}),
    ("output that exists", f"{EVALUATE} --logits-out l.safetensors; {EVALUATE} --logits-out l.safetensors", {
        "another --logits-out": EVALUATE + "--logits-out m.safetensors",
        "--overwrite if": f"{EVALUATE} --logits-out l.safetensors; {EVALUATE} --logits-out l.safetensors --overwrite"}),
    ("output nowhere", EVALUATE + "--logits-out nodir/x.safetensors", {}),
    ("corpus over itself", "pentatron corpus merge corpus_text_document corpus_text_document --output corpus_text_document --overwrite", {
        "another name": "pentatron corpus merge corpus_text_document corpus_text_document --output both"}),
    ("part without documents", "pentatron corpus split corpus_text_document --shares 1,999 --output part", {
        "a larger share": "pentatron corpus split corpus_text_document --shares 1,9 --output part",
        "fewer parts": "pentatron corpus split corpus_text_document --shares 1 --output part"}),
    ("corrupted checkpoint", "cp -r saved broken; rm broken/step_00000002/model_*; " + MOCK + "train.train_iters=3 checkpoint.load=broken/step_00000002", {
        "which is intact": "cp -r saved broken; " + MOCK + "train.train_iters=3 checkpoint.load=broken/step_00000001"}),
    ("limit on memory that no recomputation fits in", MOCK + "train.recompute=auto train.recompute_memory_limit=0.1", {}),
    # launchers
    ("half of torchrun", "RANK=0 " + MOCK, {"torchrun --nproc-per-node": TORCHRUN}),
    ("no rank 0", "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 " + MOCK, {"MASTER_ADDR": TORCHRUN}),
    ("too many threads", MOCK + "--ranks 5000", {
        "processes of several machines": TORCHRUN, "srun": SRUN}),
]

# Texts that cannot come up in one process on one machine without GPU, or that are followed by another test.
ELSEWHERE = [
    (r"notices.cpp: .*no bf16 instructions", "a processor without them: Notices of memory_plan_test.cpp"),
    (r"trainer/runtime.cpp: .*(that this process may use|torchrun sets)", "depends on processors and launcher: Runtime of every_key_test.cpp"),
    (r"base/descriptors.cpp: .*this machine has reached", "all open files of a machine: Descriptors of descriptors_test.cpp"),
    (r"base/paths.cpp: .*is an input of this command", "another output, by the user: OutputTable of outputs_test.cpp"),
    (r"(atomic_file|indexed_writer).cpp: .*was created by another program", "two programs at once: AtomicFile of io_test.cpp, Indexed of indexed_test.cpp"),
    (r"cli/run.cpp: .*is not a key of this command", "a list of keys, of which the user knows the one: ExitStatus of exit_status_test.cpp"),
    (r"run_folders.cpp: .*(contains a model|is in a checkpoint)", "new folders: UserData of user_data_test.cpp"),
    (r"preprocess.cpp: .*is both an input and an output", "files over themselves: UserData of user_data_test.cpp"),
    (r"tokenize.cpp: .*the model in .*which needs it", "a model's folder: UserData of user_data_test.cpp"),
    (r"input_files.cpp: .*is part of a corpus", "the user's files: UserData of user_data_test.cpp"),
    (r"(trainer/graphs|layer_graphs|host_copies).cpp: .*(does not support|same lengths)", "needs a GPU"),
    (r"precision.cpp: .*(on CPUs only|on GPUs|GPUs need|needs a GPU)", "needs a GPU"),
    (r"peft_settings.cpp: .*(is not a regular expression|has no weights of it)", "a file of another program: AdapterRun of adapter_test.cpp"),
    (r"convert.cpp: .*(has the name of a checkpoint|is in the source|contains the source|which is no file of a model|which would be removed)", "another target, by the user: outputs_test.cpp"),
    (r"^data/tokenizer/chat/(list_filters|number_filters|signatures)", "a model's template: ChatTemplate of chat_template_test.cpp"),
    (r"^data/sft/taught_text", "an example of a file: SftTest of sft_test.cpp"),
    (r"^data/sft/read_example", "an example of a file: ExampleTest of read_example_test.cpp"),
    (r"locate_answers.cpp: \n  try: conversations with a message", "an example of a file: ChatText of chat_text_test.cpp"),
    (r"chat/interpreter.cpp: .*prints a date", "a model's template: ChatTemplate of chat_template_test.cpp"),
    (r"sft_dataset.cpp: .*tools or tool calls, which", "a warning: TaughtTexts of sft_test.cpp"),
    (r"cli/train.cpp: .*a run that started from", "a run: UserData of user_data_test.cpp"),
    (r"starting_weights.cpp: .*contains adapters for", "a run: AdapterRun of adapter_test.cpp"),
    (r"finetune_settings.cpp: .*has a run that started from", "a run: FinetuneRuns of finetune_test.cpp"),
    (r"finetune_settings.cpp: .*has a run on", "a run: FinetuneRuns of finetune_test.cpp"),
    (r"hf_source.cpp: .*has no output layer", "a folder without one: Evaluating of evaluate_test.cpp"),
    (r"evaluate_hf.cpp: .*position_ids reach", "a batch of far positions: HfEvaluation of hf_golden_test.cpp"),
    (r"evaluate_hf.cpp: .*are ignored", "labels that are all -100: HfEvaluation of hf_golden_test.cpp"),
    (r"parts.cpp: .*model.rope_scaling.factor", "a batch of too many tokens: HfEvaluation of hf_golden_test.cpp"),
    (r"run_source.cpp: .*running mean cannot be merged", "needs a run of adapters with a running mean"),
    (r"memory_report.cpp: out of memory", "needs a limit on memory: MemoryReport of memory_plan_test.cpp"),
    (r"memory_remedy.cpp: .*it may not fit", "depends on the machine's memory: MemoryPlans of memory_plan_test.cpp"),
    (r"recompute.cpp: train.recompute=auto does not know", "needs a GPU"),
    (r"recompute.cpp: .*on this machine", "depends on the machine's memory: ChooseRecomputation of recompute_test.cpp"),
    (r"^(optim|parallel|parallelize|models)/", "followed by tests/trainer/suggestions_test.cpp"),
    (r"^comm/(backend|control|parallel_groups|rank_groups|collectives|supervisor|process_world|launch)", "several processes, launchers or machines: tests/comm"),
    (r"^cli/files/torch_place", "programs that were not built here: tests/cli/torch_place_test.cpp"),
    (r"^nn/context", "attention masks of a batch: tests/nn/sequence_layout_test.cpp"),
    (r"^nn/shard_spec", "layouts that the configuration refuses before: tests/nn"),
    (r"^trainer/differences", "ranks with different files: tests/trainer"),
    (r"^checkpoint/gguf/|^checkpoint/model_stream|^data/tokenizer/(bpe|open).*(dropout|pattern)", "files of other programs: tests/checkpoint, tests/data"),
    (r"block_file.cpp: cannot", "needs a full disk: Offload of offload_test.cpp"),
    (r"checkpoint.strictness=log_all", "tests/trainer/load_test.cpp"),
    (r"every rank read the checkpoint|this rank cannot see", "several machines: tests/trainer/node_local_test.cpp"),
    (r"the text has no tokens", "needs a tokenizer that drops all of a text"),
    (r"is in use by", "two programs at once: tests/trainer/run_folders_test.cpp"),
    (r"try: checkpoint.save on another|the run has ended, but|was not saved|continue without it", "a full disk: tests/cli/limits_test.cpp"),
    (r"^cli/doctor|^trainer/train.cpp: .*; try: ", "what doctor finds depends on the machine"),
    (r"a file was truncated, or its disk failed", "tests/cli/limits_test.cpp"),
    (r"^main.cpp", "tests/install"),
    (r"with \{\} GPUs|one process per GPU|share a GPU", "needs a GPU"),
    (r"in every process", "no room, or processes that may not look at each other: IndexCache of index_cache_test.cpp"),
    (r"^base/hf_cache", "downloads: tests/base/hf_cache_test.cpp"),
    (r"^cli/chat", "tests/cli/generating_test.cpp"),
    (r"is a DoRA adapter of ", "peft makes none of experts: tests/trainer/adapter_test.cpp"),
    (r"peft_files.cpp: .*whose values are not those of the model", "a file of another program: VocabAdapterRun of vocab_adapter_test.cpp"),
    (r"^cli/files/completion|comes with pentatron was not found", "an incomplete installation: tests/install"),
    (r"holds partial output made with other files|: positions|skip_list_bytes",
     "files of an earlier call: tests/data, tests/cli/user_data_test.cpp"),
    (r"standard input to read a prompt|in_process cannot be used with", "ranks as processes: tests/cli/generating_test.cpp, tests/comm"),
    (r"^data/gpt/(blend|named_corpora|open_indexed|gpt_index)|^data/(loader|open_datasets|open_tokens|make_tokenizer)", "data of several corpora: tests/data"),
    (r"sequence_modes, but", "corpora of several kinds of data, which Megatron makes"),
    (r"^data/batches_dataset", "files with other tensors: tests/data/batches_dataset_test.cpp"),
    (r"^trainer/evaluate_hf.*outside the model's vocabulary", "a tokenizer that is larger than its model"),
    (r"^data/parquet_source", "a build without Arrow: tests/cli"),
    (r"^trainer/model_tokenizer", "a tokenizer of an unknown kind: tests/cli/user_data_test.cpp"),
    (r"no token to predict|the prompt is empty", "a tokenizer that begins no text: tests/cli"),
    (r"^data/corpus|--input with JSON Lines", "input without a document: tests/cli/user_data_test.cpp"),
    (r"^generate/generate.*--max-new-tokens|^trainer/run_data.*less than one training sample", "what the command line refuses before; for users of the library"),
    (r"kernels=order, but", "a checkpoint with measured kernels: tests/trainer/kernel_choice_test.cpp"),
    (r"is no number of threads", "the environment: tests/trainer/every_key_test.cpp"),
    (r"that the validation reads", "validation data without targets: tests/trainer/training_test.cpp"),
    (r"MFU is not shown", "a device of unknown speed: tests/trainer"),
    (r"other programs were running|while kernels were measured|while the peak was measured", "what else the machine does: tests/kernels/selection_test.cpp"),
    (r"PENTATRON_CPU=", "the environment: tests/cli/program_test.cpp"),
    (r"^evaluation/tokenize_requests.cpp: .*has no token that begins a text", "needs a tokenizer without such a token"),
    (r"^data/objectives", "data of BERT, T5 and classifiers: tests/data"),
]
