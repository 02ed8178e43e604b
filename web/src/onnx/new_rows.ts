// Avoids copies of past keys and values. ONNX Runtime outputs "present" at every step, including the past, and in
// JavaScript every output is copied. Therefore nodes are added to the graph that slice the new tokens' rows out of each
// "present"; a runner fetches these instead.
//
// A model file is a Protocol Buffers message, and bytes that are appended to such a message are merged into it: lists
// become longer. So the file does not have to be parsed. Field numbers are those of onnx.proto.

const MODEL_GRAPH = 7;
const GRAPH = { node: 1, output: 12 } as const;
const NODE = { input: 1, output: 2, name: 3, opType: 4, attribute: 5 } as const;
const ATTRIBUTE = { name: 1, i: 3, ints: 8, type: 20 } as const;
const VALUE_INFO = { name: 1, type: 2 } as const;
const TYPE_TENSOR = 1;
const TENSOR_ELEMENT = 1;
const ELEMENT = { float32: 1, float16: 10 } as const;
const ATTRIBUTE_INT = 2;
const ATTRIBUTE_INTS = 7;

type Bytes = readonly number[];

/** The output with the new tokens' rows of a "present" output, (batch, kv heads, sequence, head_dim). */
export function newRowsName(present: string): string {
  return `nearfar.new.${present}`;
}

/**
 * A model file with such an output for each of ``presents``, in addition to its own outputs. Its graph must have the
 * inputs `input_ids` (batch, sequence) and `attention_mask` (batch, total) without padding: the new rows are those from
 * total - sequence on.
 */
export function withNewRows(
  model: Uint8Array,
  presents: readonly string[],
  dtype: keyof typeof ELEMENT,
): Uint8Array<ArrayBuffer> {
  const length = (input: string, output: string): Bytes =>
    field(GRAPH.node, node("Shape", [input], [output], [intAttribute("start", 1), intAttribute("end", 2)]));
  const graph = [
    ...length("input_ids", "nearfar.sequence"),
    ...length("attention_mask", "nearfar.total"),
    ...field(GRAPH.node, node("Sub", ["nearfar.total", "nearfar.sequence"], ["nearfar.start"], [])),
    ...field(GRAPH.node, node("Constant", [], ["nearfar.axes"], [intsAttribute("value_ints", [2])])),
    ...presents.flatMap((present) => [
      ...field(
        GRAPH.node,
        node("Slice", [present, "nearfar.start", "nearfar.total", "nearfar.axes"], [newRowsName(present)], []),
      ),
      ...field(GRAPH.output, tensorInfo(newRowsName(present), ELEMENT[dtype])),
    ]),
  ];
  const added = field(MODEL_GRAPH, graph);
  const extended = new Uint8Array(model.length + added.length);
  extended.set(model);
  extended.set(added, model.length);
  return extended;
}

function node(
  opType: string,
  inputs: readonly string[],
  outputs: readonly string[],
  attributes: readonly Bytes[],
): Bytes {
  return [
    ...inputs.flatMap((name) => text(NODE.input, name)),
    ...outputs.flatMap((name) => text(NODE.output, name)),
    ...text(NODE.name, outputs.join()),
    ...text(NODE.opType, opType),
    ...attributes.flatMap((attribute) => field(NODE.attribute, attribute)),
  ];
}

function intAttribute(name: string, value: number): Bytes {
  return [...text(ATTRIBUTE.name, name), ...integer(ATTRIBUTE.i, value), ...integer(ATTRIBUTE.type, ATTRIBUTE_INT)];
}

function intsAttribute(name: string, values: readonly number[]): Bytes {
  return [
    ...text(ATTRIBUTE.name, name),
    ...values.flatMap((value) => integer(ATTRIBUTE.ints, value)),
    ...integer(ATTRIBUTE.type, ATTRIBUTE_INTS),
  ];
}

function tensorInfo(name: string, element: number): Bytes {
  return [
    ...text(VALUE_INFO.name, name),
    ...field(VALUE_INFO.type, field(TYPE_TENSOR, integer(TENSOR_ELEMENT, element))),
  ];
}

/** Wire type 2: the number of bytes, then the bytes. */
function field(number: number, bytes: Bytes): Bytes {
  return [...varint((number << 3) | 2), ...varint(bytes.length), ...bytes];
}

function text(number: number, value: string): Bytes {
  return field(number, [...new TextEncoder().encode(value)]);
}

/** Wire type 0. */
function integer(number: number, value: number): Bytes {
  return [...varint(number << 3), ...varint(value)];
}

function varint(value: number): Bytes {
  return value < 128 ? [value] : [(value & 127) | 128, ...varint(value >>> 7)];
}
