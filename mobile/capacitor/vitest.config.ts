import { patientTests } from "../patient_tests.js";

export default patientTests({ "@capacitor/core": new URL("test/fake_capacitor.ts", import.meta.url).pathname });
